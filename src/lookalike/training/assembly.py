"""All that a run is made of, from its settings. What is wrong with them is found here, before anything is written."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from lightning_fabric import Fabric

from lookalike import data, models, objectives
from lookalike._util.progress import Display
from lookalike._util.signals import StopRequest
from lookalike.data.files import reading_at_least
from lookalike.data.pictures import Pictures
from lookalike.data.sampler import ClassBatches
from lookalike.models import Embedder
from lookalike.models.embedder import Head
from lookalike.objectives.between_proxies import BetweenAnchors
from lookalike.training.features import FeatureCache, default_folder
from lookalike.training.feeds import FeatureFeed, Feed, PictureFeed
from lookalike.training.objective import create_objective
from lookalike.training.prepare import decide, divide, fingerprint
from lookalike.training.run_folder import RunFolder, differences
from lookalike.training.settings import Settings
from lookalike.training.start import gentle_rate, start_head

T = TypeVar("T")
DECIDED_BY_DATA = ("batch_size", "per_class", "pooling_settings")  # in part: other data, other decisions


@dataclass
class Assembly:
    settings: Settings  # nothing left open
    fabric: Fabric
    display: Display
    folder: RunFolder
    train: Pictures
    validation: Pictures | None
    embedder: Embedder
    objective: objectives.Objective
    proxies: BetweenAnchors | None  # of the objective, where CCP chooses them
    feed: Feed
    fingerprints: list[str]
    state: dict[str, Any] | None  # of the run that is resumed

    @property
    def model(self) -> Embedder | Head:
        """What is trained: the head alone if the feed gives features."""
        return self.embedder.head if self.settings.freeze_backbone else self.embedder

    @property
    def rank(self) -> int:
        return self.fabric.global_rank

    @property
    def world(self) -> int:
        return self.fabric.world_size

    @property
    def first(self) -> bool:
        return self.rank == 0

    def pooling_is_ready(self) -> bool:
        """False while prototypes wait for their start from data."""
        return getattr(self.embedder.head.pooling, "ready", True)

    @property
    def steps_done(self) -> int:
        return 0 if self.state is None else int(self.state["progress"]["step"])

    def epochs(self, steps: int) -> float:
        return steps * self.settings.accumulate / self.feed.batches.steps_per_epoch(0)


def assemble(settings: Settings, stop: StopRequest, pictures: Pictures | None = None) -> Assembly:
    """``pictures``: instead of those that ``settings.data`` names."""
    if settings.out is None:
        raise ValueError("a run needs a folder to be left in: --out RUN")
    out, settings = settings.out, replace(settings, precision=_precision(settings))
    fabric = _launch(settings)
    display = Display(stop, quiet=fabric.global_rank > 0, alone=fabric.world_size == 1)
    folder = RunFolder(Path(out))
    previous = _on_first(fabric, lambda: _previous(folder, settings))
    if previous is not None:
        settings = _as_decided(previous, settings)
    elif settings.resume and settings.data is not None:
        display.say(f"there is nothing to resume in {out}: this is a new run")

    pictures = _load(fabric, settings) if pictures is None else pictures
    train, validation, notes = divide(pictures, settings)
    pretrained = not models.starts_random(settings.backbone, settings.weights)
    settings, more = decide(
        settings,
        len(train.classes),
        pretrained=pretrained,
        has_gpu=fabric.device.type != "cpu",
        world_size=fabric.world_size,
        pictures=len(train),
    )
    fingerprints = [fingerprint(part) for part in (train, validation) if part is not None]
    state = folder.read_state() if previous is not None and folder.state_file.exists() else None
    if previous is not None:
        _require_the_same(previous, settings, state is None or state["data"] == fingerprints)

    torch.manual_seed(settings.seed)
    embedder = create_embedder(settings)
    trained = embedder.head if settings.freeze_backbone else embedder
    if not any(parameter.requires_grad for parameter in trained.parameters()):
        raise ValueError("nothing would be trained: the backbone is frozen and the head has no weights; set --dim")
    enough = 2 * embedder.input_spec.resize_to
    train = reading_at_least(train, enough)
    validation = None if validation is None else reading_at_least(validation, enough)
    objective, proxies = create_objective(
        settings, len(train.classes), embedder.head.dim, embedder.head.pooling, validation is not None
    )
    batches = ClassBatches(
        train.labels,
        settings.batch_size,
        settings.per_class or 1,
        seed=settings.seed,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
    )
    for note in notes + more:
        display.say(note)
    embedder.to(fabric.device)
    feed: Feed
    if settings.freeze_backbone:
        feed = FeatureFeed(
            train, _features(settings, embedder, train, validation, fabric, display), batches, settings.views
        )
    else:
        feed = PictureFeed(
            train, embedder.input_spec, batches, workers=settings.workers, crop=settings.crop, flip=settings.flip
        )
    if state is None:
        display.say(start_head(embedder, feed, train, settings, display))
        settings = replace(settings, lr=settings.lr or gentle_rate(embedder))
        if fabric.global_rank == 0:
            folder.write_settings(settings)
            folder.write_json("data.json", describe(pictures, train, validation))
    elif previous is not None and fabric.global_rank == 0:  # so that the next --resume knows what was asked last
        folder.write_settings(replace(previous, steps=settings.steps, patience=settings.patience))
    return Assembly(
        settings, fabric, display, folder, train, validation, embedder, objective, proxies, feed, fingerprints, state
    )


def create_embedder(settings: Settings) -> Embedder:
    backbone = models.create_backbone(settings.backbone, weights=settings.weights)
    size = settings.size or backbone.spec.size
    spec = backbone.spec.resized(size)
    if settings.resize is not None:
        spec = replace(spec, resize=settings.resize)
    elif settings.crop == "none":  # then nothing is cut off in evaluation either
        spec = replace(spec, resize=size)
    try:
        grid = backbone.grid(torch.zeros(1, 3, size, size))
        tiny = grid == (1, 1) and backbone.grid(torch.zeros(1, 3, 2 * size, 2 * size)) == grid
    except (AssertionError, RuntimeError, ValueError) as error:
        raise ValueError(f"{settings.backbone} does not take pictures of {size} pixels: {error}") from error
    if tiny:
        raise ValueError(
            f"{settings.backbone} does not take pictures of {size} pixels: twice as many would still be one place to it"
        )
    embedder = Embedder(
        backbone,
        dim=settings.dim,
        pooling=settings.pooling,
        pooling_settings=settings.pooling_settings,
        normalise=settings.normalise or "l2",
        input_spec=spec,
    )
    projected = 0 if embedder.head.projection is None else len(embedder.head.projection.weight)
    if settings.start == "pca" and projected > backbone.channels:
        raise ValueError(
            f"{settings.backbone} has {backbone.channels} principal directions, which cannot start {projected}: "
            "set a smaller --dim, or --start random"
        )
    if settings.freeze_backbone:
        models.freeze(embedder.backbone)
    else:
        if settings.freeze_batch_norm:
            models.freeze_batch_norm(embedder.backbone)
        if settings.train_stages is not None:
            models.train_last_stages(embedder.backbone, settings.train_stages)
    return embedder


def describe(pictures: Pictures, train: Pictures, validation: Pictures | None) -> dict[str, Any]:
    """What ``data.json`` says: enough to tell later which classes were seen."""
    return {
        "name": pictures.name,
        "training": {"pictures": len(train), "classes": list(train.classes)},
        "held_out": None if validation is None else {"pictures": len(validation), "classes": list(validation.classes)},
        "left_out": [list(problem) for problem in pictures.problems],
    }


def _features(
    settings: Settings,
    embedder: Embedder,
    train: Pictures,
    validation: Pictures | None,
    fabric: Fabric,
    display: Display,
) -> FeatureCache:
    cache = FeatureCache(
        settings.cache or default_folder(),
        embedder.backbone,
        embedder.input_spec,
        crop=settings.crop,
        flip=settings.flip,
        seed=settings.seed,
    )
    wanted = [(train, settings.views), *([(validation, 1)] if validation is not None else [])]
    count = sum(len(pictures) * views for pictures, views in wanted)
    missing = cache.missing(wanted)
    display.say(f"features: {count - len(missing):,} of {count:,} are in {cache.store.folder}")
    for whose in (lambda view: int(view.key[:8], 16) % fabric.world_size == fabric.global_rank, lambda _: True):
        # Each process does its share; then what it still does not see, as where machines have caches of their own.
        mine = [view for view in cache.missing(wanted) if whose(view)]
        with display.bar(len(mine), "features") as tick:
            cache.fill(mine, workers=settings.workers, tick=tick)
        fabric.barrier()
        cache.store.refresh()
    return cache


def _precision(settings: Settings) -> Literal["32-true", "bf16-mixed", "16-mixed"]:
    if settings.precision != "auto":
        return settings.precision
    return "bf16-mixed" if settings.device not in ("cpu", "mps") and torch.cuda.is_available() else "32-true"


def _launch(settings: Settings) -> Fabric:
    devices, nodes = settings.devices, settings.nodes
    if "TORCHELASTIC_RUN_ID" in os.environ:  # under torchrun, which has decided
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    strategy = "ddp" if devices * nodes > 1 else "auto"
    fabric = Fabric(
        accelerator=settings.device, devices=devices, num_nodes=nodes, strategy=strategy, precision=_precision(settings)
    )
    fabric.launch()
    return fabric


def _load(fabric: Fabric, settings: Settings) -> Pictures:
    """The first process checks every file; the others leave out what it found unreadable."""
    if settings.data is None:
        missing = f"there is no run in {settings.out} to resume, and a new one" if settings.resume else "a run"
        raise ValueError(f"{missing} needs data: a folder of class folders, a CSV, a benchmark, or glyphs")
    source = settings.data
    pictures = None

    def check() -> tuple[str, ...]:
        nonlocal pictures
        pictures = data.load(source, strict=settings.strict, check=settings.check, progress=True)
        return pictures.names

    kept = _on_first(fabric, check)
    if pictures is not None:
        return pictures
    unchecked = data.load(source, check=False)
    place = {name: i for i, name in enumerate(unchecked.names)}
    return unchecked.take([place[name] for name in kept])


def _previous(folder: RunFolder, settings: Settings) -> Settings | None:
    """The settings of the run to resume; None for a new one, for which there must be room."""
    if settings.resume and (folder.path / "settings.yaml").exists():
        folder.refuse_fewer_steps(settings.steps)
        return folder.read_settings()
    folder.refuse_if_taken()
    return None


def _require_the_same(previous: Settings, settings: Settings, same_data: bool) -> None:
    """A run resumes with the settings and the data it began with."""
    changed = differences(previous, settings)
    asked = [change for change in changed if change.split(":")[0] not in DECIDED_BY_DATA]
    if not asked and not same_data:
        raise ValueError(
            f"{settings.data} is not what it was when the run in {settings.out} began: it cannot be resumed"
        )
    if changed:
        raise ValueError(f"a run resumes with the settings it began with; changed are {', '.join(asked or changed)}")


def _as_decided(previous: Settings, asked: Settings) -> Settings:
    """What is left open now is what was decided then."""
    known = {n: value for n, value in vars(previous).items() if getattr(asked, n) in (None, "auto")}
    if "memory" in previous.pooling_settings:  # of the prototypes' start, which goes by the number of steps
        known["pooling_settings"] = {"memory": previous.pooling_settings["memory"], **asked.pooling_settings}
    return replace(asked, **known)


def _on_first(fabric: Fabric, work: Callable[[], T]) -> T:
    """The result of the first process, or its error, for all."""
    result: T | None = None
    error: Exception | None = None
    if fabric.global_rank == 0:
        try:
            result = work()
        except (ValueError, TypeError, OSError) as failure:
            error = failure
    if fabric.world_size > 1:
        result, error = fabric.broadcast((result, error))
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # set where there is no error
