"""Estimates how long a plan takes before it starts, from a few steps with random inputs on this machine."""

import time
from collections.abc import Callable
from dataclasses import replace
from math import ceil

import torch

from lookalike._util.progress import format_duration
from lookalike.data.files import counted
from lookalike.data.pictures import Pictures
from lookalike.experiments.cells import Cell
from lookalike.training.model import create_embedder

TIMED_STEPS = 3
ENDLESS = 100_000  # more steps than this are not meant to be done
SLOW_DECODING = 0.002  # seconds for a picture and core, if pictures are read at every step
OVERHEAD = 0.005  # seconds of a step for sampling, losses and logs


class Estimate:
    """Estimated time to train and test cells that differ in fold and seed only.

    Args:
        cell: one of them.
        pictures: of the cell, with their splits.
        step: seconds of a training step.
        embed: seconds to embed a picture.
        feature: seconds to compute the backbone's features of a picture.

    Attributes:
        once: seconds that are spent once for all cells, on features of a frozen backbone.
        per_thousand: seconds of 1,000 steps with their evaluations.
    """

    def __init__(self, cell: Cell, pictures: Pictures, step: float, embed: float, feature: float) -> None:
        settings = cell.settings
        self.steps = settings.steps
        self.evaluation = embed * len(pictures.split("validation"))
        self.test = embed * len(pictures.split("test"))
        self.once = feature * len(pictures) if settings.freeze_backbone else 0.0
        self.per_thousand = 1000 * step + 1000 / settings.evaluate_every * self.evaluation

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
    """The estimate as one text. It is no bound: other work slows a cell down, and patience ends it early."""
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
    embedder = create_embedder(settings).to(device).train()
    backbone, head = embedder.backbone, embedder.head
    side = embedder.input_spec.size
    images = torch.randn(settings.batch_size, 3, side, side, device=device)
    overhead = OVERHEAD * settings.accumulate
    with torch.no_grad():
        tokens = backbone(images)
        feature = _time(lambda: backbone(images), device) / len(images)
        pool = _time(lambda: head(tokens), device) / len(images)
    if settings.freeze_backbone:
        step = _time(lambda: head(tokens).square().sum().backward(), device) + overhead
        return Estimate(cell, pictures, step, embed=pool, feature=feature)
    step = _time(lambda: embedder(images).square().sum().backward(), device) + overhead
    step += SLOW_DECODING * len(images)
    return Estimate(cell, pictures, step, embed=feature + pool, feature=feature)


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
