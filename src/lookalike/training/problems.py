"""Chance-constrained programming inside a run: its problems from the settings, its samples as inputs, what it says."""

from functools import partial
from math import isnan

import torch
from torch import Tensor, nn

from lookalike.objectives import BetweenSamples
from lookalike.training.assembly import Assembly
from lookalike.training.ccp import Problem, ProxyProblems
from lookalike.training.evaluation import share
from lookalike.training.measuring import Measuring
from lookalike.training.settings import Settings


def create_problems(parts: Assembly, model: nn.Module, measuring: Measuring) -> ProxyProblems | None:
    settings = parts.settings
    if parts.proxies is None:
        return None
    return ProxyProblems(
        model,
        parts.proxies,
        parts.train.labels,
        measuring.vectors,
        pool=settings.ccp_pool,
        pull=settings.ccp_pull,
        patience=settings.ccp_patience,
        select=settings.ccp_select,
        alternate=settings.ccp_alternate,
        seed=settings.seed,
        bar=partial(parts.display.bar, what="choosing proxies", unit=" classes"),
    )


class Samples:
    """Inputs of the pictures that a problem compares with: this process's share, read once for each problem.

    They come as they are evaluated, not augmented, for a problem is about these very pictures. They stay in memory:
    on one process classes * proxies inputs.
    """

    def __init__(self, parts: Assembly) -> None:
        self.parts = parts
        self.problem = 0
        self.held: Tensor | None = None

    def of(self, problem: int) -> Tensor | None:
        """None where there are none: with proxies, and without CCP."""
        objective = self.parts.proxies
        if isinstance(objective, BetweenSamples) and problem != self.problem:
            rank, world, count = self.parts.rank, self.parts.world, len(objective.places)
            places = objective.places.cpu().numpy()[share(count, rank, world)]
            read = torch.cat(list(self.parts.feed.evaluation(self.parts.train.take(places))))
            missing = -(-count // world) - len(read)  # every process brings as many; what is too many is dropped
            self.held = torch.cat((read, read[:missing])).to(self.parts.fabric.device)
            self.problem = problem
        return self.held


def row_of(ended: Problem, settings: Settings) -> dict[str, float]:
    row = {"problem": ended.number, "problem steps": _steps(ended, settings), "problem best": ended.best}
    row |= {"radius before": ended.radius_before, "radius after": ended.radius_after}
    return row if isnan(ended.moved) else {**row, "moved": ended.moved}


def sentence_of(ended: Problem, settings: Settings) -> str:
    steps, best = _steps(ended, settings), f"{settings.monitor} {100 * ended.best:.2f}"
    radius = f"covering radius {ended.radius_before:.3f} -> {ended.radius_after:.3f}"
    moved = "" if isnan(ended.moved) else f", weights moved by {ended.moved:.2%}"
    return f"problem {ended.number} is solved: {steps} steps, {best}, {radius}{moved}"


def _steps(ended: Problem, settings: Settings) -> int:
    measured_before_it_began = ended.number == 1  # at step 0
    return (ended.evaluations - measured_before_it_began) * settings.evaluate_every
