"""The objective of a run: the base loss, what it is compared with, and what is added to it.

    (1 - zero_shot) * base + zero_shot * L_zs + centres * regulariser

where base is the loss in the batch, that and a memory, or the loss between the batch and proxies or samples (CCP). What
cannot go together is refused here, with the reason.
"""

from typing import NamedTuple

from lookalike import objectives
from lookalike.objectives import (
    BetweenProxies,
    BetweenSamples,
    Composed,
    Objective,
    PairObjective,
    ProxyObjective,
    ZeroShot,
    with_memory,
)
from lookalike.objectives.between_proxies import BetweenAnchors
from lookalike.pooling import Pooling
from lookalike.training.settings import Settings


class Assembled(NamedTuple):
    objective: Objective
    proxies: BetweenAnchors | None  # or samples, which CCP chooses anew, problem by problem


def create_objective(
    settings: Settings, classes: int, dim: int, pooling: Pooling | type[Pooling], validates: bool
) -> Assembled:
    """For ``classes`` training classes and embeddings of size ``dim``; ``validates``: something is held out."""
    base = objectives.create(settings.loss, classes, dim, preset=settings.preset, **settings.loss_settings)
    _refuse_impossible(settings, base, pooling, validates)
    main: Objective = base
    proxies: BetweenAnchors | None = None
    if settings.memory:
        starts = settings.memory_start * settings.accumulate
        main = with_memory(base, dim, settings.memory, settings.batch_size, start_after=starts)
    if settings.ccp:
        assert isinstance(base, PairObjective)
        count, in_batch = settings.ccp_proxies, settings.ccp_in_batch
        if settings.ccp_against == "samples":
            proxies = BetweenSamples(base, classes, count, in_batch)
        else:
            proxies = BetweenProxies(base, classes, dim, count, in_batch)
        main = proxies
    parts: dict[str, tuple[float, Objective]] = {"metric": (1 - settings.zero_shot, main)}
    if settings.zero_shot:
        parts["zero-shot"] = (settings.zero_shot, ZeroShot(classes, dim, **settings.zero_shot_settings))
    if settings.centres:
        where = {"proxies_of": base} if isinstance(base, ProxyObjective) else {"classes": classes, "dim": dim}
        regulariser = objectives.create_centres(**{"seed": settings.seed, **settings.centres_settings, **where})
        parts["centres"] = (settings.centres, regulariser)
    return Assembled(Composed(parts) if len(parts) > 1 else main, proxies)


def _refuse_impossible(settings: Settings, base: Objective, pooling: Pooling | type[Pooling], validates: bool) -> None:
    pairs = isinstance(base, PairObjective)
    if settings.zero_shot and not pooling.has_attributes:
        raise ValueError(f"--zero-shot needs a pooling with prototypes, as gsp, got {settings.pooling}")
    if settings.memory and not pairs:
        raise ValueError(f"--memory needs a loss on pairs, as contrastive or multi-similarity, got {settings.loss}")
    if settings.memory and settings.memory_start >= settings.steps:
        raise ValueError(
            f"the memory joins in after {settings.memory_start} steps and the run has {settings.steps}: it would never "
            "be used; set a smaller --memory-start or more --steps"
        )
    if settings.ccp and not pairs:
        raise ValueError(f"--ccp needs a loss on pairs between batch and proxies, got {settings.loss}")
    if settings.ccp and settings.memory:
        raise ValueError("--ccp and --memory both give a batch something to be compared with: choose one of them")
    if settings.ccp and not validates:
        raise ValueError("--ccp ends its problems by the figures on what is held out, and nothing is: see --validation")
    if settings.ccp and settings.ccp_pool < settings.ccp_proxies:
        raise ValueError(f"--ccp-pool must be at least --ccp-proxies {settings.ccp_proxies}, got {settings.ccp_pool}")
