"""How long a plan will take, before it is begun: measured on this machine, by a few steps with random inputs."""

import time
from collections.abc import Callable
from dataclasses import replace
from math import ceil

import torch

from lookalike._util.progress import for_people
from lookalike.data.files import counted
from lookalike.data.pictures import Pictures
from lookalike.experiments.cells import Cell
from lookalike.training.model import create_embedder
from lookalike.training.settings import Settings

STEPS = 3
ENDLESS = 100_000  # steps, beyond which nobody means to do them all
SLOW_DECODING = 0.002  # seconds for a picture and core, where pictures are read at every step


class Estimate:
    """Seconds of training steps, of an evaluation and of a test, for cells that are alike."""

    def __init__(self, cell: Cell, parts: Pictures, seconds: dict[str, float]) -> None:
        settings = cell.settings
        self.steps = settings.steps
        self.step = seconds["step"]
        self.evaluation = seconds["picture"] * len(parts.split("validation"))
        self.test = seconds["picture"] * len(parts.split("test"))
        self.once = seconds["feature"] * len(parts) if settings.freeze_backbone else 0.0
        self.per_thousand = 1000 * self.step + 1000 / settings.evaluate_every * self.evaluation

    @property
    def most(self) -> float:
        """Seconds of one cell with all its steps; patience may end it earlier."""
        return self.steps / 1000 * self.per_thousand + self.evaluation + self.test


def estimate(cell: Cell, parts: Pictures, threads: int | None = None) -> Estimate:
    """For cells like this one, whose pictures are ``parts``. Pooling and loss are taken as average and nothing.

    ``threads``: as many as a worker will have, if it is not all that this process has.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        return _estimate(cell, parts)
    finally:
        torch.set_num_threads(before)


def _estimate(cell: Cell, parts: Pictures) -> Estimate:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings = replace(cell.settings, pooling="average", pooling_settings={}, weights="none")
    settings = replace(settings, freeze_backbone=bool(settings.freeze_backbone))
    embedder = create_embedder(settings).to(device).train()
    side = embedder.input_spec.size
    images = torch.randn(settings.batch_size, 3, side, side, device=device)
    with torch.no_grad():
        feature = _time(lambda: embedder.backbone(images), device) / len(images)
        tokens = embedder.backbone(images)
        head = _time(lambda: embedder.head(tokens), device) / len(images)
    inputs, module = (tokens, embedder.head) if settings.freeze_backbone else (images, embedder)
    step = _time(lambda: module(inputs).square().sum().backward(), device) + _optimiser(settings)
    if not settings.freeze_backbone:
        step += SLOW_DECODING * len(images)
    picture = head if settings.freeze_backbone else feature + head
    return Estimate(cell, parts, {"step": step, "picture": picture, "feature": feature})


def describe_estimate(guess: Estimate, left: int, what: str = "model", workers: int = 1) -> str:
    """For ``left`` cells of this kind, by ``workers`` at once. No bound: other work slows it, patience ends it."""
    text = f"about {for_people(guess.per_thousand)} for 1,000 steps of one {what}"
    if guess.steps > ENDLESS:
        return f"{text}; patience decides how many steps there are"
    seconds = guess.once + ceil(left / workers) * guess.most
    by = "one worker" if workers == 1 else f"{workers} workers"
    return f"{text}, about {for_people(seconds)} for {counted(left, what)} with {by}"


def _time(work: Callable[[], object], device: torch.device) -> float:
    """The shortest of some runs, after one that warms up."""
    work()
    seconds = []
    for _ in range(STEPS):
        started = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def _optimiser(settings: Settings) -> float:
    return 0.005 * settings.accumulate  # of a step, whatever its size: sampling, losses, logs
