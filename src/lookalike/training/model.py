"""Model and objective of a run: the embedder, the start of its head from data, the loss, and both as one module.

A projection that starts at random loses what the backbone knows. One that starts from the principal directions of the
backbone's features is as good as they are from the first step.
"""

from collections.abc import Callable
from dataclasses import replace
from math import ceil

import numpy as np
import torch
from torch import Tensor, nn

from lookalike import models, objectives
from lookalike._util.progress import Display
from lookalike.data.pictures import Pictures
from lookalike.models import Embedder, ProjectionStart
from lookalike.models.backbone import in_eval_mode
from lookalike.models.embedder import Head
from lookalike.models.input_spec import InputSpec
from lookalike.objectives import (
    LIBC,
    BetweenProxies,
    BetweenSamples,
    Composed,
    Gathered,
    Loss,
    Objective,
    PairObjective,
    ProxyObjective,
    ZeroShot,
    with_memory,
)
from lookalike.objectives.between_proxies import BetweenAnchors
from lookalike.objectives.gather import gather_with_gradient, world_size
from lookalike.objectives.libc import Finished
from lookalike.pooling import Pooling
from lookalike.pooling.autograd import precise
from lookalike.pooling.base import StartsFromData
from lookalike.training.features import Feed, join_shares
from lookalike.training.settings import Settings

START_PICTURES = 1024  # sample from which the head starts
START_POSITIONS = 16  # local features taken from each of them
RELATIVE_RATE = 0.0075
PROTOTYPE_NORM = 2.0  # median norm at which prototypes reach the unit sphere, where they work best


def create_embedder(settings: Settings) -> Embedder:
    """Create backbone and head, frozen as the settings say.

    Raises:
        ValueError: If the backbone does not take the size, or cannot start the projection.
    """
    embedder = attach_head(models.create_backbone(settings.backbone, weights=settings.weights), settings)
    if settings.head_only:
        models.freeze(embedder.backbone)
        return embedder
    if settings.freeze_batch_norm:
        models.freeze_batch_norm(embedder.backbone)
    if settings.train_stages is not None:
        models.train_last_stages(embedder.backbone, settings.train_stages)
    return embedder


def attach_head(backbone: models.Backbone, settings: Settings) -> Embedder:
    """Create the embedder of a run from its backbone, which may be on the meta device.

    Raises:
        ValueError: If the backbone does not take the size, or cannot start the projection.
    """
    embedder = Embedder(
        backbone,
        dim=settings.dim,
        pooling=settings.pooling,
        pooling_settings=settings.pooling_settings,
        normalise=settings.normalise or "l2",
        input_spec=_input_spec(backbone, settings),
    )
    projection = embedder.head.projection
    if settings.start == "pca" and projection is not None and len(projection.weight) > backbone.channels:
        raise ValueError(
            f"{settings.backbone} has {backbone.channels} principal directions, which cannot start "
            f"{len(projection.weight)}: set a smaller --dim, or --start random"
        )
    return embedder


def require_trained(settings: Settings, embedder: Embedder) -> None:
    """Raise ValueError if the run has nothing to train."""
    trained = embedder.head if settings.head_only else embedder
    if not any(parameter.requires_grad for parameter in trained.parameters()):
        raise ValueError("nothing would be trained: the backbone is frozen and the head has no weights; set --dim")


@torch.no_grad()
def start_head(embedder: Embedder, feed: Feed, train: Pictures, settings: Settings, display: Display) -> str:
    """Start projection and prototypes from a sample of the training pictures.

    Returns:
        A note that says what was done.
    """
    head = embedder.head
    if settings.start == "glorot" and head.projection is not None:
        nn.init.xavier_uniform_(head.projection.weight)
        return "start: random weights, Glorot uniform"
    if settings.start != "pca":
        return "start: random weights"
    if not head.projects_channels:
        return f"start: random weights, because {settings.pooling} does not keep the backbone's channels"
    local, averages = _sample_features(embedder, feed, train, settings, display)
    candidates: Tensor | None = None
    more = ""
    pooling = head.pooling
    if isinstance(pooling, StartsFromData) and settings.pooling_settings.get("init") != "random":
        candidates = local
        if settings.prototypes_from == "pictures":
            if len(averages) >= pooling.num_prototypes or len(local) < pooling.num_prototypes:
                candidates = averages
            else:
                more = f"; prototypes from places, as {len(averages)} pictures are too few for {pooling.num_prototypes}"
    radius = settings.pooling_settings.get("radius", 1.0)
    start = start_from_features(head, local, candidates, median_norm=settings.median_norm, radius=radius)
    note = f"start: {len(start.weight)} principal directions of {local.shape[1]}, which hold {start.kept:.1%}; "
    return f"{note}local features have a median norm of {start.median_norm:.2f}{more}"


@torch.no_grad()
def start_from_features(
    head: Head, local: Tensor, candidates: Tensor | None, *, median_norm: float, radius: float
) -> ProjectionStart:
    """Start the projection from principal directions, and prototypes from candidates by greedy k-centre.

    Args:
        head: Is changed in place.
        local: Local features (K, C).
        candidates: Features (M, C) among which prototypes are chosen; None, or a pooling without prototypes: none.
        median_norm: Median length of projected local features.
        radius: Length at which the pooling clips features; prototypes start at about this length.
    """
    start = head.start_from_pca(local, scale_to_median_norm=median_norm)
    if candidates is not None and isinstance(head.pooling, StartsFromData):
        stretch = 1.0
        if head.pooling.in_unit_ball:
            stretch = max(1.0, PROTOTYPE_NORM * radius / median_norm)
        head.pooling.init_from(stretch * head.project(candidates))
    return start


def gentle_rate(embedder: Embedder) -> float:
    """Return a learning rate for a head that starts from data: an Adam step changes a weight by less than 1 %.

    Chosen on CUB's training classes with features of EfficientNet-lite0. It is relative to the weights, because the
    weights that give local features a set norm depend on the backbone.

    Returns:
        The rate, with two digits.
    """
    assert embedder.head.projection is not None
    return relative_rate(embedder.head.projection.weight)


def relative_rate(weight: Tensor) -> float:
    """Return ``gentle_rate`` for the weight of a projection."""
    size = float(weight.detach().square().mean().sqrt())
    return float(f"{RELATIVE_RATE * size:.2g}")


def create_objective(
    settings: Settings, classes: int, dim: int, pooling: Pooling | type[Pooling], validates: bool
) -> tuple[Objective, BetweenAnchors | None]:
    """Create the loss of a run: (1 - zero_shot) * (base + libc * LIBC) + zero_shot * L_zs + centres * regulariser.

    The base is the loss in the batch, the same with a memory, or the loss between batch and proxies or samples (CCP).

    Returns:
        The whole loss, and the proxies or samples that CCP chooses anew for every problem; None without CCP.

    Raises:
        ValueError: If settings cannot be combined.
    """
    loss_settings = dict(settings.loss_settings)
    if objectives.full_name(settings.loss) == "libc":
        loss_settings.setdefault("seed", settings.seed)
    base = objectives.create(settings.loss, classes, dim, preset=settings.preset, **loss_settings)
    _check_combination(settings, base, pooling, validates)
    main: Objective = base
    anchors: BetweenAnchors | None = None
    if settings.memory:
        start = settings.memory_start * settings.accumulate
        main = with_memory(
            base, dim, settings.memory, settings.batch_size, form=settings.memory_form, start_after=start
        )
    if settings.ccp:
        assert isinstance(base, PairObjective)
        count, in_batch = settings.ccp_proxies, settings.ccp_in_batch
        if settings.ccp_against == "samples":
            anchors = BetweenSamples(base, classes, count, in_batch)
        else:
            anchors = BetweenProxies(base, classes, dim, count, in_batch)
        main = anchors
    terms: dict[str, tuple[float, Objective]] = {"metric": (1 - settings.zero_shot, main)}
    if settings.libc:
        options = {"seed": settings.seed, **settings.libc_settings}
        libc = objectives.create("libc", classes, dim, preset=settings.preset, **options)
        terms["libc"] = ((1 - settings.zero_shot) * settings.libc, libc)
    if settings.zero_shot:
        terms["zero-shot"] = (settings.zero_shot, ZeroShot(classes, dim, **settings.zero_shot_settings))
    if settings.centres:
        options = {"seed": settings.seed, **settings.centres_settings}
        if isinstance(main, (ProxyObjective, BetweenProxies)):
            options |= {"proxies_of": main}
        else:
            options |= {"classes": classes, "dim": dim}
        terms["centres"] = (settings.centres, objectives.create_centres(**options))
    if len(terms) > 1:
        if any(objective.needs_raw for _, objective in terms.values()):
            terms = _finish_others(terms, settings)
        main = Composed(terms)
    return main, anchors


class Learner(nn.Module):
    """Computes the loss of a batch. Model and loss are one module, so that DDP averages the gradients of both.

    Args:
        model: An Embedder for pictures, or its head for their local features.
        objective: Loss; it sees the joined batches of all processes.
        local_features: Makes local features (B, N, C) of inputs; None: the Embedder's backbone, or nothing for a head.

    Attributes:
        backbone_waits: Compute no gradients for the backbone, whose batch norm still follows the batches.
    """

    def __init__(
        self,
        model: Embedder | Head,
        objective: Objective,
        local_features: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.model: Embedder | Head = model
        self.backbone_waits = False
        self._local_features = [local_features]  # in a list, so that torch does not register a module
        self.objective = Gathered(objective)
        # In a list, so that torch does not register them a second time.
        self._sample_losses = [module for module in objective.modules() if isinstance(module, BetweenSamples)]

    def trains_without_backbone(self) -> bool:
        """Whether head or loss have parameters to train."""
        head = self.model.head if isinstance(self.model, Embedder) else self.model
        parameters = [*head.parameters(), *self.objective.parameters()]
        return any(parameter.requires_grad for parameter in parameters)

    def forward(
        self,
        inputs: Tensor,
        labels: Tensor,
        positions: Tensor | None = None,
        samples: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Loss:
        """Compute the loss.

        Args:
            inputs: Pictures (B, 3, H, W), local features (B, N, C), or whatever ``local_features`` takes.
            labels: Classes (B,).
            positions: Positions of the pictures in the training set (B,), for losses with a memory or samples.
            samples: Inputs of this process's share of the samples that CCP compares with.
            mask: Local features (B, N) that are pooled; None: all.

        Returns:
            The loss and its parts.
        """
        tokens = inputs
        if samples is not None:
            tokens = torch.cat((inputs, samples))
        head = self.model
        local_features = self._local_features[0]
        if isinstance(head, Embedder):
            local_features = local_features or head.backbone
            head = head.head
        if local_features is not None:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.backbone_waits):
                tokens = local_features(tokens)  # batch and samples together, for batch norm
        for sample_loss in self._sample_losses:
            with in_eval_mode(head.pooling):  # samples must not count for prototypes that start from batches
                own_share = head(tokens[len(inputs) :])
            sample_loss.see(_gather(own_share, len(sample_loss.places)))
        tokens = tokens[: len(inputs)]
        objective = self.objective.objective
        if not objective.needs_attributes:
            return self.objective(head(tokens, mask, raw=objective.needs_raw), labels, None, positions)
        pooled = head(tokens, mask, details=True, raw=objective.needs_raw)
        attributes = pooled.attributes
        if not getattr(head.pooling, "ready", True):
            attributes = torch.zeros_like(attributes)  # prototypes that were not chosen yet say nothing
        return self.objective(pooled.vector, labels, attributes, positions)


def _input_spec(backbone: models.Backbone, settings: Settings) -> InputSpec:
    size = settings.size or backbone.spec.size
    try:
        grid = backbone.grid(torch.zeros(1, 3, size, size))
        too_small = grid == (1, 1) and backbone.grid(torch.zeros(1, 3, 2 * size, 2 * size)) == grid
    except (AssertionError, RuntimeError, ValueError) as error:
        raise ValueError(f"{settings.backbone} does not take pictures of {size} pixels: {error}") from error
    if too_small:
        raise ValueError(
            f"{settings.backbone} does not take pictures of {size} pixels: even twice the size gives a single position"
        )
    spec = backbone.spec.resized(size)
    if settings.resize is not None:
        return replace(spec, resize=settings.resize)
    if settings.crop == "none":  # then evaluation does not crop either
        return replace(spec, resize=size)
    return spec


def _sample_features(
    embedder: Embedder, feed: Feed, train: Pictures, settings: Settings, display: Display
) -> tuple[Tensor, Tensor]:
    """Local features (K, C) and averages (M, C) of some training pictures."""
    rng = np.random.default_rng(settings.seed)
    chosen = np.sort(rng.permutation(len(train))[:START_PICTURES])
    device = next(embedder.parameters()).device
    embedder.eval()
    local, averages = [], []
    with display.bar(len(chosen), "start") as tick:
        for inputs in feed.evaluation(train.take(chosen)):
            tokens = feed.local_features(inputs.to(device), embedder.backbone).float()
            all_positions = np.tile(np.arange(tokens.shape[1]), (len(tokens), 1))
            positions = torch.from_numpy(rng.permuted(all_positions, axis=1)[:, :START_POSITIONS]).to(device)
            local.append(tokens.gather(1, positions.unsqueeze(-1).expand(-1, -1, tokens.shape[2])).flatten(0, 1))
            averages.append(tokens.mean(1))
            tick(len(inputs))
    return torch.cat(local), torch.cat(averages)


def _check_combination(settings: Settings, base: Objective, pooling: Pooling | type[Pooling], validates: bool) -> None:
    on_pairs = isinstance(base, PairObjective)
    if settings.libc and isinstance(base, LIBC):
        raise ValueError("--libc adds LIBC to another loss, but --loss is libc already: leave --libc out")
    if (settings.libc or isinstance(base, LIBC)) and settings.batch_size < 2:
        raise ValueError("LIBC passes messages between pictures of a batch: --batch-size must be at least 2, got 1")
    if settings.message_passing and not (settings.libc or isinstance(base, LIBC)):
        raise ValueError(f"--message-passing needs LIBC (--loss libc or --libc), got the loss {settings.loss}")
    if settings.zero_shot and not pooling.has_attributes:
        raise ValueError(f"--zero-shot needs a pooling with prototypes, as gsp, got {settings.pooling}")
    if settings.memory and not on_pairs:
        raise ValueError(f"--memory needs a loss on pairs, as contrastive or multi-similarity, got {settings.loss}")
    first_use = _memory_joins(settings)
    if settings.memory and first_use >= settings.steps:
        raise ValueError(
            f"the memory is used after {first_use} steps and the run has {settings.steps}: it would never be used; "
            "set a smaller --memory-start or --memory, or more --steps"
        )
    if not settings.ccp:
        return
    if not on_pairs:
        raise ValueError(f"--ccp needs a loss on pairs between batch and proxies, got {settings.loss}")
    if settings.memory:
        raise ValueError("--ccp and --memory both give a batch something to be compared with: choose one of them")
    if not validates:
        raise ValueError("--ccp ends its problems by metrics on held-out data, but there are none: see --validation")
    if settings.ccp_pool < settings.ccp_proxies:
        raise ValueError(f"--ccp-pool must be at least --ccp-proxies {settings.ccp_proxies}, got {settings.ccp_pool}")


def _finish_others(terms: dict[str, tuple[float, Objective]], settings: Settings) -> dict[str, tuple[float, Objective]]:
    """LIBC takes embeddings before they are normalised; the other terms do not."""
    finished = {}
    for name, (weight, objective) in terms.items():
        if not objective.needs_raw:
            objective = Finished(objective, settings.normalise or "l2")
        finished[name] = (weight, objective)
    return finished


def _memory_joins(settings: Settings) -> int:
    """Steps before the first one that uses the memory: in the official form, the one that fills it."""
    if settings.memory_form == "distinct":
        return settings.memory_start
    return settings.memory_start + ceil(settings.memory / settings.accumulate) - 1


def _gather(own_share: Tensor, count: int) -> Tensor:
    """Vectors of the samples of all processes in order; gradients flow back to the process that computed them."""
    if world_size() == 1:
        return own_share
    return join_shares(gather_with_gradient(precise(own_share)).unflatten(0, (world_size(), -1)), count)
