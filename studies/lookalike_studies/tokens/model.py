"""Trainable tokens: points of the plane that are learnt through a pooling.

A sample of class c is a bag of tokens. A share ~ N(0.5, 0.1) of them are tokens of c, drawn with replacement; the rest
are background tokens that all classes share. Tokens and the prototypes of generalized sum pooling are the only weights.

One run is tiny, so many runs train as one stack of tensors. Runs with the same seed start from the same tokens and see
the same samples. A bag repeats few tokens, so the cost of leaving a token out,

    cost_t = -logsumexp_i(-sharpness ||clip(w_i) - clip(token_t)||) / sharpness,

is computed once for each token and looked up; ``partial_transport`` does the rest.

Reference: section 5.3.1 of Gürbüz's thesis.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lookalike import objectives
from lookalike.geometry import clip, greedy_k_centre
from lookalike.objectives import Loss
from lookalike.pooling.transport import partial_transport
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike.training.loop import fit
from lookalike_studies.framework.context import Tick
from lookalike_studies.framework.study import StudySettings, setting

SEARCH_SEED = 1000  # of the runs that choose m, keep and sharpness
JITTER = 1e-3  # added to prototypes that start at tokens: at a distance of 0 there is no gradient
Points = NDArray[np.float32]  # (n, 2)


@dataclass(frozen=True)
class Tokens(StudySettings):
    """Settings of the study."""

    classes: int = setting("classes", least=2)
    tokens: int = setting("tokens of a class", least=1)
    background: int = setting("tokens that all classes share", least=1)
    size: int = setting("tokens in a sample", least=1)
    share: float = setting("mean share of class tokens in a sample", above=0, up_to=1)
    spread: float = setting("standard deviation of that share", above=0)
    bound: float = setting("coordinates of a token lie in -bound..bound", above=0)
    rate: float = setting("learning rate of Adam", above=0)
    per_class: int = setting("samples of each class in a batch", least=2)
    patience: int = setting("epochs without better validation that end a run", least=1)
    epoch: int = setting("steps", budget=True, least=1)
    margins: tuple[float, ...] = setting("negative margins of C2, to choose from", above=0)
    published_margin: float = setting("the margin that the papers publish for their benchmarks")
    prototypes: tuple[int, ...] = setting("m, to choose from", least=1)
    keep: tuple[float, ...] = setting("mu, to choose from; 1 would be average pooling", above=0, below=1)
    sharpness: tuple[float, ...] = setting("epsilon, to choose from", above=0)
    validation: int = setting("samples of each class for validation", budget=True, least=2)
    test: int = setting("samples of each class for the test", budget=True, least=2)
    search_epochs: int = setting("of every combination", budget=True, least=1)
    epochs: int = setting("at most, of the runs that count", budget=True, least=1)
    seeds: tuple[int, ...] = setting("of the runs that count", budget=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if max(self.prototypes) > self.total:
            raise ValueError(f"prototypes must be at most {self.total}, the number of tokens, got {self.prototypes}")
        if SEARCH_SEED in self.seeds:
            raise ValueError(f"seeds must not contain {SEARCH_SEED}, the seed of the search")
        if self.published_margin not in self.margins:
            raise ValueError(f"published_margin must be one of margins, got {self.published_margin}")

    @property
    def total(self) -> int:
        """Number of tokens: those of class 0, of class 1, ..., then the background."""
        return self.classes * self.tokens + self.background


class Samples(NamedTuple):
    """Bags of tokens."""

    bags: Tensor  # (B, n), index of each token
    labels: Tensor  # (B,)
    is_class_token: Tensor  # (B, n) bool; False: a background token


@dataclass(frozen=True)
class Run:
    """Settings of one run; ``keep`` = 1 is average pooling, without prototypes."""

    margin: float
    seed: int
    keep: float = 1.0
    sharpness: float = 1.0
    prototypes: int = 0


class Trained(NamedTuple):
    """Outcome of one run."""

    curve: list[float]  # MAP@R of validation, at the start and after every epoch until the run stopped
    first_tokens: Points
    first_prototypes: Points
    tokens: Points  # of the best epoch
    prototypes: Points

    @property
    def best(self) -> float:
        """Highest MAP@R of validation."""
        return max(self.curve)


class Stack(nn.Module):
    """Learner of R runs: tokens (R, total, 2) and prototypes (R, m, 2), all with prototypes or all without."""

    def __init__(self, runs: Sequence[Run], tokens: Tensor, prototypes: Sequence[Tensor]) -> None:
        super().__init__()
        self.runs = list(runs)
        self.averages = all(run.keep == 1 for run in runs)
        self.tokens = nn.Parameter(tokens)
        padded = nn.utils.rnn.pad_sequence(list(prototypes), batch_first=True)
        self.prototypes = nn.Parameter(padded, requires_grad=not self.averages)
        counts = torch.tensor([len(points) for points in prototypes])
        self.absent = torch.arange(padded.shape[1]) >= counts.unsqueeze(1)
        self.keep = torch.tensor([[run.keep] for run in runs])
        self.sharpness = torch.tensor([[run.sharpness] for run in runs])
        self.margins = torch.tensor([run.margin for run in runs])

    def pool(self, bags: Tensor) -> tuple[Tensor, Tensor]:
        """Pool bags of token indices (R, B, n) to vectors (R, B, 2), with weights (R, B, n)."""
        flat = bags.flatten(1)
        features = self.tokens.gather(1, flat.unsqueeze(-1).expand(-1, -1, 2)).view(*bags.shape, 2)
        if self.averages:
            return features.mean(2), torch.full(bags.shape, 1 / bags.shape[-1])
        distances = torch.cdist(clip(self.tokens), clip(self.prototypes), compute_mode="donot_use_mm_for_euclid_dist")
        logits = (-self.sharpness.unsqueeze(-1) * distances).masked_fill(self.absent.unsqueeze(1), -torch.inf)
        token_cost = -logits.logsumexp(-1) / self.sharpness
        cost = token_cost.gather(1, flat).view(bags.shape)
        weights = partial_transport(cost.unsqueeze(2), self.keep, self.sharpness).weights
        return (weights.unsqueeze(-1) * features).sum(2), weights

    def forward(self, bags: Tensor, labels: Tensor) -> Loss:
        """Sum the losses of all runs, which share no parameters; bags (R, B, n), labels (B,)."""
        vectors, _ = self.pool(bags)
        total = torch.zeros(())
        for margin in self.margins.unique():
            total = total + contrastive(vectors[self.margins == margin], labels, float(margin)).sum()
        return Loss(total, {})

    def points(self, i: int) -> tuple[Points, Points]:
        """Copy tokens and prototypes of run i."""
        tokens = self.tokens[i].detach().numpy().copy()
        return tokens, self.prototypes[i, : self.runs[i].prototypes].detach().numpy().copy()


def contrastive(vectors: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Compute C2 on plain distances for R runs at once: vectors (R, B, 2), labels (B,) -> (R,)."""
    objective = objectives.create("c2", positive_margin=0.0, negative_margin=margin, normalise=False)
    return torch.vmap(lambda of_run: objective(of_run, labels).value)(vectors)


def draw_samples(settings: Tokens, per_class: int, rng: np.random.Generator) -> Samples:
    """Draw samples of every class."""
    labels = np.arange(settings.classes).repeat(per_class)
    counts = (rng.normal(settings.share, settings.spread, len(labels)) * settings.size).round().clip(0, settings.size)
    class_tokens = rng.integers(settings.tokens, size=(len(labels), settings.size)) + settings.tokens * labels[:, None]
    background = rng.integers(settings.background, size=class_tokens.shape) + settings.tokens * settings.classes
    is_class_token = np.arange(settings.size) < counts[:, None]
    bags = np.where(is_class_token, class_tokens, background)
    return Samples(torch.from_numpy(bags), torch.from_numpy(labels), torch.from_numpy(is_class_token))


def create_stack(runs: Sequence[Run], settings: Tokens) -> Stack:
    """Draw tokens uniformly in the square; choose prototypes among them by greedy k-centre."""
    tokens, prototypes = [], []
    shape = (settings.total, 2)
    for run in runs:
        rng = np.random.default_rng((run.seed, 2))
        points = torch.from_numpy(rng.uniform(-settings.bound, settings.bound, shape).astype(np.float32))
        tokens.append(points)
        candidates = points + torch.from_numpy(rng.normal(0, JITTER, shape).astype(np.float32))
        if run.prototypes:
            candidates = candidates[greedy_k_centre(candidates, run.prototypes).indices]
        prototypes.append(candidates[: run.prototypes])
    return Stack(runs, torch.stack(tokens), prototypes)


def train(runs: Sequence[Run], settings: Tokens, epochs: int, tick: Tick) -> list[Trained]:
    """Train all runs at once; each ends by itself after ``patience`` epochs without improvement.

    Either all runs pool by average or all by GSP. ``tick`` is called with the number of runs after every step.
    """
    stack = create_stack(runs, settings)
    parameters = [parameter for parameter in stack.parameters() if parameter.requires_grad]
    samples = {}
    for run in runs:
        samples[run.seed] = draw_samples(settings, settings.validation, np.random.default_rng((run.seed, 1)))
    bags = torch.stack([samples[run.seed].bags for run in runs])
    labels = samples[runs[0].seed].labels
    outcomes = [Trained([], *stack.points(i), *stack.points(i)) for i in range(len(runs))]
    improvements = 0

    @torch.no_grad()
    def evaluate() -> dict[str, float]:
        nonlocal improvements
        vectors, _ = stack.pool(bags)
        for i, outcome in enumerate(outcomes):
            curve = outcome.curve
            if curve and len(curve) - 1 - curve.index(max(curve)) >= settings.patience:
                continue
            curve.append(retrieval_metrics(vectors[i], labels, distance="l2")["MAP@R"])
            if curve.index(max(curve)) == len(curve) - 1:
                tokens, prototypes = stack.points(i)
                outcomes[i] = outcome._replace(tokens=tokens, prototypes=prototypes)
                improvements += 1
        return {"improvements": float(improvements)}  # constant as soon as all runs have ended

    @torch.no_grad()
    def on_step(_: int, __: Loss) -> None:
        stack.tokens.clamp_(-settings.bound, settings.bound)
        tick(len(runs))

    fit(
        stack,
        _batches(runs, settings),
        torch.optim.Adam(parameters, lr=settings.rate),
        steps=epochs * settings.epoch,
        evaluate=evaluate,
        evaluate_every=settings.epoch,
        monitor="improvements",
        patience=settings.patience,
        on_step=on_step,
    )
    return outcomes


@torch.no_grad()
def pool(run: Run, tokens: Points, prototypes: Points, samples: Samples) -> tuple[Tensor, Tensor]:
    """Pool samples with the weights of one run to vectors (B, 2), with the weights (B, n) of the tokens."""
    stack = Stack([run], torch.from_numpy(tokens)[None], [torch.from_numpy(prototypes)])
    vectors, weights = stack.pool(samples.bags[None])
    return vectors[0], weights[0]


def _batches(runs: Sequence[Run], settings: Tokens) -> Iterator[tuple[Tensor, Tensor]]:
    rngs = {run.seed: np.random.default_rng((run.seed, 0)) for run in runs}
    while True:
        samples = {seed: draw_samples(settings, settings.per_class, rng) for seed, rng in rngs.items()}
        yield torch.stack([samples[run.seed].bags for run in runs]), samples[runs[0].seed].labels
