"""Estimates how long a plan takes before it starts, from a few steps with random inputs on this machine."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil

import numpy as np
import torch
from torch import Tensor, nn

from lookalike._util.progress import format_duration
from lookalike.data.files import counted
from lookalike.data.pictures import Pictures, UnreadablePicture
from lookalike.experiments.cells import Cell
from lookalike.inference.preprocess import Preprocess
from lookalike.models.stages import StageCut
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike.training.model import create_embedder

TIMED_STEPS = 2
TIMED_PICTURES = 4  # of a batch; enough on a CPU, whose time is proportional to their number
ENDLESS = 100_000  # a larger number of steps means that patience ends the run
READ = 4  # pictures that are read to time it
STARTUP = 3.0  # seconds to start a model from data, save it and load it again for its test
COMPARED = 1_000  # vectors of the timed evaluation, whose time grows with the square of their number
OVERHEAD = 0.005  # seconds of a step for sampling, losses and logs


@dataclass(frozen=True)
class Timings:
    """Measured seconds.

    Attributes:
        startup: to set up a model, and to save and load it.
        step: of a training step.
        embed: to embed a picture, from cached features if there are any.
        feature: to read a picture and compute the backbone's features.
        compare: to compare 1,000 vectors with each other.
    """

    startup: float
    step: float
    embed: float
    feature: float
    compare: float


class Estimate:
    """Estimated time to train and test cells that differ in fold and seed only.

    Args:
        cell: one of them.
        pictures: of the cell, with their splits.
        timings: of its parts.

    Attributes:
        once: seconds that are spent once for all cells, on features of a frozen backbone.
        per_thousand: seconds of 1,000 steps with their evaluations.
    """

    def __init__(self, cell: Cell, pictures: Pictures, timings: Timings) -> None:
        settings = cell.settings
        self.steps = settings.steps
        assert pictures.splits is not None
        validation, test = 0, len(pictures.split("test"))
        if settings.validation and "validation" in pictures.splits:
            validation = len(pictures.split("validation"))
        self.evaluation = timings.embed * validation + timings.compare * (validation / COMPARED) ** 2
        self.test = timings.startup + timings.embed * test + timings.compare * (test / COMPARED) ** 2
        self.once = 0.0
        if settings.freeze_backbone:
            training = len(pictures) - validation - test
            self.once = timings.feature * (training * settings.views + validation + test)
        self.per_thousand = 1000 * timings.step + 1000 / settings.evaluate_every * self.evaluation

    @property
    def most(self) -> float:
        """Seconds of one cell with all its steps; patience may end it earlier."""
        return self.steps / 1000 * self.per_thousand + self.evaluation + self.test


def estimate(cell: Cell, pictures: Pictures, threads: int | None = None) -> Estimate:
    """Time a few steps of a cell with average pooling and a trivial loss, with the ``threads`` of one worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        return _estimate(cell, pictures)
    finally:
        torch.set_num_threads(before)


def describe_estimate(guess: Estimate, cells: int, kind: str = "model", workers: int = 1) -> str:
    """Format the estimate. The real time may be longer, with other work, or shorter, with patience."""
    text = f"about {format_duration(guess.per_thousand)} for 1,000 steps of one {kind}"
    if guess.steps > ENDLESS:
        return f"{text}; patience decides how many steps there are"
    seconds = guess.once + ceil(cells / workers) * guess.most
    by = "one worker" if workers == 1 else f"{workers} workers"
    return f"{text}, about {format_duration(seconds)} for {counted(cells, kind)} with {by}"


def _estimate(cell: Cell, pictures: Pictures) -> Estimate:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings = replace(cell.settings, pooling="average", pooling_settings={}, weights="none")
    settings = replace(settings, freeze_backbone=bool(settings.freeze_backbone))
    started = time.perf_counter()
    embedder = create_embedder(settings).to(device).train()
    startup = STARTUP + 2 * (time.perf_counter() - started)  # it is built for training, and loaded for the test
    backbone, head = embedder.backbone, embedder.head
    side = embedder.input_spec.size
    count = settings.batch_size
    if device.type == "cpu":
        count = min(count, TIMED_PICTURES)
    images = torch.randn(count, 3, side, side, device=device)
    batches = settings.batch_size / count
    overhead = OVERHEAD * settings.accumulate
    read = _read_time(Preprocess(embedder.input_spec).reading(pictures))
    vectors = torch.randn(COMPARED, head.dim, device=device)
    labels = torch.arange(COMPARED) // 10
    compare = _time(lambda: retrieval_metrics(vectors, labels), device)
    cut = None
    if settings.freeze_backbone and settings.train_stages:
        with suppress(ValueError):  # then pictures go through the whole network
            cut = StageCut(backbone, settings.train_stages, side)
    if settings.head_only or cut is not None:
        frozen: nn.Module = backbone
        last_stages: Callable[[Tensor], Tensor] = nn.Identity()
        if cut is not None:
            frozen, last_stages = cut.frozen, cut.tokens
        with torch.no_grad():
            stored = frozen(images)
            feature = _time(lambda: frozen(images), device) / len(images)
            embed = _time(lambda: head(last_stages(stored)), device) / len(images)
        step = batches * _time(lambda: head(last_stages(stored)).square().sum().backward(), device) + overhead
        return Estimate(cell, pictures, Timings(startup, step, embed, feature + read, compare))
    with torch.no_grad():
        tokens = backbone(images)
        feature = _time(lambda: backbone(images), device) / len(images)
        pool = _time(lambda: head(tokens), device) / len(images)
    step = batches * _time(lambda: embedder(images).square().sum().backward(), device) + overhead
    step += read * settings.batch_size
    return Estimate(cell, pictures, Timings(startup, step, feature + pool + read, feature + read, compare))


def _read_time(pictures: Pictures) -> float:
    """Seconds to read a picture, if all cores of this machine do it."""
    positions = np.linspace(0, len(pictures) - 1, min(READ, len(pictures))).astype(int)
    started = time.perf_counter()
    for position in positions.tolist():
        with suppress(UnreadablePicture):  # left out by the run
            pictures.image(position)
    return (time.perf_counter() - started) / len(positions) / (os.cpu_count() or 1)


def _time(work: Callable[[], object], device: torch.device) -> float:
    """Seconds of the fastest of some runs, after one to warm up."""
    work()
    seconds = []
    for _ in range(TIMED_STEPS):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return min(seconds)
