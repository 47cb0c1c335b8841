"""Resolve settings: what the user left open is decided from the data, the backbone and the machine.

``resolve`` is the only place that does so. Every decision that may surprise comes with a note to print.
"""

from dataclasses import replace
from typing import Any, Literal

import torch

from lookalike import models, objectives
from lookalike.data.files import counted
from lookalike.data.pictures import Pictures
from lookalike.objectives.base import Hints
from lookalike.training.settings import FREE_ON_RESUME, Settings

PROTOTYPES, MEMORY = 64, 1024  # defaults of GSP: prototypes, and pictures that it collects before they start
EARLY = 4  # prototypes start from data and the backbone begins to learn within the first quarter of a run
# GSP with the pca start: a nearly linear score that sees the length of features. Chosen on held-out classes of several
# data sets, see docs/results/gsp-defaults.md. The papers' settings are those of a preset.
SELECTION: dict[str, Any] = {
    "num_prototypes": 8,
    "sharpness": 10.0,
    "radius": 20.0,
    "init": "random",
    "learn_keep": True,
    "learn_sharpness": True,
}
POOLING_LR = 25.0  # times lr, for prototypes and scores: lr of a head that starts from data would not move them
SCALAR_RATE = 0.005  # of keep and sharpness: with much less they stay where they start, with more they overfit
STAGE_RATE = 1e-5  # of stages trained from cached maps; at 1e-4 they forget within 100 steps
DECIDED_BY_DATA = ("batch_size", "per_class", "pooling_settings")  # may differ because the data do


def resolve(
    asked: Settings, previous: Settings | None, train: Pictures, *, has_gpu: bool, world_size: int
) -> tuple[Settings, list[str]]:
    """Decide all open settings.

    Only ``lr``, ``backbone_lr`` and ``pooling_lr`` may stay None: a head that starts from data determines them, see
    ``set_rates``.

    Args:
        asked: Settings of the user.
        previous: Settings of the run to resume, or None. What is open now is what was decided then.
        train: Training pictures.
        has_gpu: Whether the run has a GPU.
        world_size: Number of processes.

    Returns:
        The final settings, and notes to print.
    """
    settings = replace(asked, precision=choose_precision(asked))
    if previous is not None:
        settings = _continue(previous, settings)
    return fill_in(
        settings,
        len(train.classes),
        pretrained=not models.starts_random(settings.backbone, settings.weights),
        has_gpu=has_gpu,
        world_size=world_size,
        pictures=len(train),
    )


def fill_in(
    settings: Settings,
    classes: int,
    *,
    pretrained: bool,
    has_gpu: bool,
    world_size: int = 1,
    pictures: int | None = None,
) -> tuple[Settings, list[str]]:
    """Replace the values None in settings.

    Raises:
        ValueError: If batch, classes and processes do not fit together.
    """
    notes: list[str] = []
    hints = objectives.training_hints(settings.loss, settings.preset)
    settings = _resolve_backbone(settings, pretrained, has_gpu, notes)
    settings = _resolve_batches(settings, hints, classes, world_size, notes)
    settings = _resolve_head(settings, hints, pretrained, pictures, notes)
    settings = _resolve_optimizer(settings, hints, pretrained)
    return settings, notes


def set_rates(settings: Settings, lr: float) -> Settings:
    """Set the rates that ``resolve`` left open, for the learning rate ``lr`` of the head."""
    if settings.lr is not None:
        return settings
    scalar_lr = settings.scalar_lr
    if scalar_lr is None and settings.pooling_lr is None:
        scalar_lr = _multiple(SCALAR_RATE, lr)
    return replace(
        settings,
        lr=lr,
        backbone_lr=settings.backbone_lr or _backbone_lr(settings, lr),
        pooling_lr=settings.pooling_lr or POOLING_LR,
        scalar_lr=scalar_lr,
    )


def choose_precision(settings: Settings) -> Literal["32-true", "bf16-mixed", "16-mixed"]:
    """Return the precision of a run: "auto" is bf16-mixed on CUDA, else 32-true."""
    if settings.precision != "auto":
        return settings.precision
    if settings.device not in ("cpu", "mps") and torch.cuda.is_available():
        return "bf16-mixed"
    return "32-true"


def require_resumable(previous: Settings, settings: Settings, same_data: bool) -> None:
    """Check that a resumed run has the settings and the data it began with.

    Raises:
        ValueError: Names what changed.
    """
    changes = {}
    for name, before in vars(previous).items():
        now = getattr(settings, name)
        if name not in FREE_ON_RESUME and before != now:
            changes[name] = f"{name}: {before} -> {now}"
    changed_by_user = [text for name, text in changes.items() if name not in DECIDED_BY_DATA]
    if not changed_by_user and not same_data:
        raise ValueError(
            f"{settings.data} has changed since the run in {settings.out} began: it cannot be resumed, start a new run"
        )
    if changes:
        listed = ", ".join(changed_by_user or changes.values())
        raise ValueError(f"a run must resume with the settings it began with; changed are {listed}")


def _continue(previous: Settings, asked: Settings) -> Settings:
    decided = {}
    for name, value in vars(previous).items():
        if getattr(asked, name) in (None, "auto"):
            decided[name] = value
    if not asked.pooling_settings:
        decided["pooling_settings"] = previous.pooling_settings
    elif "memory" in previous.pooling_settings:  # depends on the number of steps, which may have changed
        decided["pooling_settings"] = {"memory": previous.pooling_settings["memory"], **asked.pooling_settings}
    return replace(asked, **decided)


def _resolve_backbone(settings: Settings, pretrained: bool, has_gpu: bool, notes: list[str]) -> Settings:
    frozen = settings.freeze_backbone
    if frozen is None:
        frozen = pretrained and not has_gpu
        if frozen:
            trained = "the head is trained"
            if settings.train_stages:
                trained = f"the head and {counted(settings.train_stages, 'stage')} are trained"
            notes.append(f"no GPU: the backbone stays frozen, {trained} (--no-freeze-backbone trains all)")
    if frozen and not pretrained:
        notes.append("the backbone is frozen with random weights: this is rarely useful")
    if settings.views > 1 and not frozen:
        notes.append("--views has no effect without a frozen backbone: every picture is augmented anew each time")
    if settings.erase and frozen:
        notes.append("--erase has no effect with a frozen backbone: its features are computed from whole pictures")
    freeze_batch_norm = settings.freeze_batch_norm
    if freeze_batch_norm is None:
        freeze_batch_norm = pretrained
    return replace(settings, freeze_backbone=frozen, freeze_batch_norm=freeze_batch_norm)


def _resolve_batches(settings: Settings, hints: Hints, classes: int, world_size: int, notes: list[str]) -> Settings:
    batch_size = settings.batch_size
    per_class = settings.per_class or min(hints.per_class, batch_size)
    if hints.per_class > 1 and per_class < 2 and not (settings.memory or settings.ccp):
        raise ValueError(f"{settings.loss} compares pairs: it needs at least two pictures per class in a batch, got 1")
    if batch_size % per_class:
        raise ValueError(f"batch_size must be a multiple of per_class {per_class}, got {batch_size}")
    if batch_size // per_class > classes:
        batch_size = _largest_batch(classes, per_class, world_size)
        content = f"{counted(per_class, 'picture')} of each of {batch_size // per_class} classes"
        notes.append(f"{content} make batches of {batch_size}, not {settings.batch_size}")
    return replace(settings, batch_size=batch_size, per_class=per_class)


def fitting_batch_size(settings: Settings, classes: int) -> int:
    """Return the batch size of a run in one process: less than ``settings.batch_size`` if classes are too few."""
    hints = objectives.training_hints(settings.loss, settings.preset)
    per_class = settings.per_class or min(hints.per_class, settings.batch_size)
    return min(settings.batch_size, classes * per_class)


def _largest_batch(classes: int, per_class: int, world_size: int) -> int:
    for count in range(classes, 0, -1):
        if count * per_class % world_size == 0:
            return count * per_class
    raise ValueError(
        f"{classes} classes with {per_class} pictures each do not divide into {world_size} equal batches: "
        "use fewer processes"
    )


def _resolve_head(
    settings: Settings, hints: Hints, pretrained: bool, pictures: int | None, notes: list[str]
) -> Settings:
    start = settings.start
    if start is None:
        start = "pca" if pretrained and settings.dim is not None else "random"
    normalise = settings.normalise
    if normalise is None:
        normalise = "clip" if settings.ccp else "l2"
    loss_settings = dict(settings.loss_settings)
    if normalise != "l2" and objectives.takes(settings.loss, "normalise"):
        loss_settings.setdefault("normalise", False)  # vectors of any length are compared as they are
    settings = replace(settings, start=start, normalise=normalise, loss_settings=loss_settings)
    pooling = dict(settings.pooling_settings)
    selects = settings.pooling == "gsp" and start == "pca"
    as_papers = settings.preset is not None or settings.zero_shot > 0  # the zero-shot loss needs many prototypes
    if selects and not as_papers and not (SELECTION.keys() | {"keep"}) & pooling.keys():  # they belong together
        pooling |= SELECTION
    elif "gsp" in settings.pooling.split("+"):
        pooling.setdefault("sharpness", hints.sharpness if settings.preset else 5.0)
        if start != "pca":
            pooling.setdefault("init", "k-centre")
        elif pictures is not None and pictures < PROTOTYPES:
            pooling.setdefault("num_prototypes", pictures)  # prototypes are chosen among the pictures
    if start != "pca" and pooling.get("init", "random") != "random":
        _resolve_memory(pooling, settings.steps * settings.batch_size, notes)
    return replace(settings, pooling_settings=pooling)


def _resolve_memory(pooling: dict[str, Any], seen: int, notes: list[str]) -> None:
    """Choose how many pictures are collected before prototypes start, in a run that sees ``seen`` pictures."""
    if seen < EARLY * MEMORY:  # with the default, most of the run would be average pooling
        least = pooling.get("num_prototypes", PROTOTYPES)
        if pooling["init"] == "k-centre-released":
            least *= 2
        pooling.setdefault("memory", min(MEMORY, max(least, seen // EARLY)))
    if seen < pooling.get("memory", MEMORY):
        notes.append("too few steps for prototypes to start from data: the whole run is average pooling")


def _resolve_optimizer(settings: Settings, hints: Hints, pretrained: bool) -> Settings:
    lr = settings.lr
    if lr is None and settings.preset:
        lr = hints.learning_rate
    if lr is None and settings.start != "pca":
        lr = 1e-3
    warm_up = settings.warm_up
    if warm_up is None:
        warm_up = 0  # random weights need no protection, and frozen ones are not trained
        if pretrained and not settings.head_only:
            warm_up = min(hints.warm_up * settings.evaluate_every, settings.steps // EARLY)
    proxy_lr = settings.proxy_lr
    if proxy_lr is None:
        proxy_lr = 1.0 if settings.ccp else hints.rate_multiplier  # CCP names no multiplier
    pooling_lr = settings.pooling_lr
    if pooling_lr is None and (lr is not None or settings.preset):
        pooling_lr = 1.0
    return replace(
        settings,
        lr=lr,
        backbone_lr=settings.backbone_lr or _backbone_lr(settings, lr),
        pooling_lr=pooling_lr,
        proxy_lr=proxy_lr,
        warm_up=warm_up,
        save_every=settings.save_every or settings.evaluate_every,
    )


def _backbone_lr(settings: Settings, lr: float | None) -> float | None:
    """Multiple of ``lr`` for the backbone, None if it depends on an ``lr`` that is still open."""
    if not (settings.freeze_backbone and settings.train_stages) or settings.lr is not None:
        return 1.0
    if lr is None:
        return None
    return _multiple(STAGE_RATE, lr)


def _multiple(rate: float, lr: float) -> float:
    return float(f"{rate / lr:.4g}")
