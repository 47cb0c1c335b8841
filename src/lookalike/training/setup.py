"""Set up a run: from settings to data, model, objective and batches, top to bottom.

Whatever is wrong with settings or data is found here, before anything is written to the run folder.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from lookalike import data
from lookalike._util.progress import Display
from lookalike._util.signals import StopRequest
from lookalike.data.pictures import Pictures
from lookalike.data.sampler import ClassBatches, ReshapedBatches
from lookalike.inference.preprocess import Preprocess
from lookalike.models import Embedder
from lookalike.models.backbone import in_eval_mode
from lookalike.models.embedder import Head
from lookalike.models.stages import StageCut
from lookalike.objectives import Objective
from lookalike.objectives.between_proxies import BetweenAnchors
from lookalike.training.checkpoint import RunFolder
from lookalike.training.features import FeatureFeed, Feed, PictureFeed, fill_cache
from lookalike.training.model import create_embedder, create_objective, gentle_rate, require_trained, start_head
from lookalike.training.resolve import choose_precision, require_resumable, resolve, set_rates
from lookalike.training.settings import Settings
from lookalike.training.split import describe, divide, fingerprint, fingerprint_without_content

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")


@dataclass
class Setup:
    """Everything a run is made of.

    Attributes:
        settings: Resolved settings.
        fabric: Launched Fabric: device, precision, processes.
        display: Prints notes and progress, from one process only.
        folder: Folder of the run.
        train: Training pictures.
        validation: Held-out pictures, or None.
        embedder: Model.
        objective: Loss.
        anchors: The part of the objective that CCP chooses, or None.
        feed: Source of batches.
        fingerprints: Of training and held-out pictures.
        state: Saved state of the run to resume, or None.
    """

    settings: Settings
    fabric: "Fabric"
    display: Display
    folder: RunFolder
    train: Pictures
    validation: Pictures | None
    embedder: Embedder
    objective: Objective
    anchors: BetweenAnchors | None
    feed: Feed
    fingerprints: list[str]
    state: dict[str, Any] | None

    @property
    def model(self) -> Embedder | Head:
        """The trained module: the head alone if no stage of the backbone trains."""
        if self.settings.head_only:
            return self.embedder.head
        return self.embedder

    def local_features(self, inputs: Tensor) -> Tensor:
        """Compute what is left to do for the backbone: the feed's inputs -> local features (B, N, C)."""
        if self.settings.head_only:
            with torch.no_grad(), in_eval_mode(self.embedder.backbone):
                return self.feed.local_features(inputs, self.embedder.backbone)
        return self.feed.local_features(inputs, self.embedder.backbone)

    @property
    def is_first(self) -> bool:
        """True in the process that writes the run folder."""
        return self.fabric.global_rank == 0


def set_up(settings: Settings, folder: RunFolder, stop: StopRequest, pictures: Pictures | None = None) -> Setup:
    """Set up a new run, or one to resume.

    Args:
        settings: Settings of the user.
        folder: Folder of the run; it is locked here, and the caller unlocks it.
        stop: Request to stop, checked during long work.
        pictures: Pictures to use instead of ``settings.data``.

    Returns:
        The run, ready for its first step.

    Raises:
        ValueError: For bad settings or data.
        Stopped: If ``stop`` was requested.
    """
    fabric = _launch(settings)
    display = Display(stop, quiet=fabric.global_rank > 0, alone=fabric.world_size == 1)
    previous = _on_first_process(fabric, lambda: _previous_settings(folder, settings))
    if previous is None and settings.resume and settings.data is not None:
        display.say(f"there is nothing to resume in {settings.out}: this is a new run")

    # Data, then settings
    if pictures is None:
        pictures = _load(fabric, settings, previous)
    train, validation, notes = divide(pictures, settings)
    has_gpu = fabric.device.type != "cpu"
    settings, more_notes = resolve(settings, previous, train, has_gpu=has_gpu, world_size=fabric.world_size)
    tables = [train]
    if validation is not None:
        tables.append(validation)
    fingerprints = _on_first_process(fabric, lambda: [fingerprint(table) for table in tables])
    state = None
    if previous is not None:
        if folder.state_file.exists():
            state = folder.read_state()
            if folder.state_note:
                notes.append(folder.state_note)
        same_data = state is None or state["data"] == fingerprints
        if state is not None and state["data"] == [fingerprint_without_content(table) for table in tables]:
            same_data = True
            notes.append("an earlier version began this run without a hash of the pictures: they cannot be compared")
        require_resumable(previous, settings, same_data=same_data)

    # Model and objective
    torch.manual_seed(settings.seed)
    embedder = create_embedder(settings)
    require_trained(settings, embedder)
    objective, anchors = create_objective(
        settings, len(train.classes), embedder.head.dim, embedder.head.pooling, validation is not None
    )

    # Batches
    preprocess = Preprocess(embedder.input_spec)
    train = preprocess.reading(train)
    if validation is not None:
        validation = preprocess.reading(validation)
    sampler_type = ReshapedBatches if settings.reshape else ClassBatches
    sampler = sampler_type(
        train.labels,
        settings.batch_size,
        settings.per_class or 1,
        seed=settings.seed,
        rank=fabric.global_rank,
        world_size=fabric.world_size,
    )
    for note in notes + more_notes:
        display.say(note)
    embedder.to(fabric.device)
    cut = cache = None
    if settings.freeze_backbone and settings.train_stages:
        cut = _cut(embedder, settings.train_stages, display)
    if settings.head_only or cut is not None:
        cache = fill_cache(settings, embedder, train, validation, fabric, display, cut)
    feed: Feed
    if cache is not None:
        feed = FeatureFeed(train, cache, sampler, settings.views)
    else:
        feed = PictureFeed(
            train,
            embedder.input_spec,
            sampler,
            workers=settings.workers,
            crop=settings.crop,
            flip=settings.flip,
            erase=settings.erase,
        )

    # Start of the head, and the learning rate that depends on it
    if state is None:
        display.say(start_head(embedder, feed, train, settings, display))
        if settings.lr is None:
            settings = set_rates(settings, gentle_rate(embedder))
    if fabric.global_rank == 0:
        if state is None:
            folder.write_settings(settings)
            folder.write_json("data.json", describe(pictures, train, validation))
        elif previous is not None:  # so that the next --resume knows the last request
            kept = replace(previous, steps=settings.steps, patience=settings.patience, view=settings.view)
            folder.write_settings(kept)
    return Setup(
        settings, fabric, display, folder, train, validation, embedder, objective, anchors, feed, fingerprints, state
    )


def _launch(settings: Settings) -> "Fabric":
    from lightning_fabric import Fabric

    devices, nodes = settings.devices, settings.nodes
    if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has decided
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    fabric = Fabric(
        accelerator=settings.device,
        devices=devices,
        num_nodes=nodes,
        strategy="ddp" if devices * nodes > 1 else "auto",
        precision=choose_precision(settings),
    )
    fabric.launch()
    return fabric


def _cut(embedder: Embedder, stages: int, display: Display) -> StageCut | None:
    """Cut the backbone before the stages that train; None, with a note, if that is not possible."""
    try:
        return StageCut(embedder.backbone, stages, embedder.input_spec.size)
    except ValueError as error:
        display.say(f"{error}: nothing is cached, pictures go through the whole network at every step")
        return None


def _previous_settings(folder: RunFolder, settings: Settings) -> Settings | None:
    """Lock the folder. Return the settings of the run to resume; None for a new run, whose folder must be free."""
    folder.lock()
    if settings.resume and (folder.path / "settings.yaml").exists():
        folder.refuse_fewer_steps(settings.steps)
        return folder.read_settings()
    folder.refuse_if_taken()
    return None


def _load(fabric: "Fabric", settings: Settings, previous: Settings | None) -> Pictures:
    """Load the pictures. The first process checks every file; the others drop what it found unreadable."""
    source = settings.data
    if source is None and previous is not None:
        source = previous.data
    if source is None:
        subject = f"there is no run in {settings.out} to resume, and a new one" if settings.resume else "a run"
        raise ValueError(f"{subject} needs data: a folder of class folders, a CSV, a data set, or glyphs")
    pictures = None

    def check() -> tuple[str, ...]:
        nonlocal pictures
        pictures = data.load(source, strict=settings.strict, check=settings.check, progress=True)
        return pictures.names

    readable = _on_first_process(fabric, check)
    if pictures is not None:
        return pictures
    unchecked = data.load(source, check=False)
    positions = {name: position for position, name in enumerate(unchecked.names)}
    return unchecked.take([positions[name] for name in readable])


def _on_first_process(fabric: "Fabric", work: Callable[[], T]) -> T:
    """Run ``work`` in the first process and give its result or error to all."""
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
    return result  # type: ignore[return-value]  # set if there is no error
