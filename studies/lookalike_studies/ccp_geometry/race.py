"""Proxy problems on pictures in memory: one problem for ever, alternating ones, and alternating ones against samples.

A plain loop around ``lookalike.training.ccp``, which keeps what a plot needs of every problem: where the held-out
pictures lay when it was at its best, the proxies it began with, what became of them, and those of the next problem.
All kinds have the same start, batches, steps and rate; weights are chosen by MAP@R on held-out pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lookalike.data.sampler import ClassBatches
from lookalike.geometry import clip
from lookalike.objectives import BetweenProxies, BetweenSamples, PairObjective
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike.training.ccp import ProxyProblems

Floats = NDArray[np.float32]
Tick = Callable[[int], None]

ONE, ALTERNATING, SAMPLES = "one problem", "alternating", "alternating, samples"
EVALUATION_BATCH = 100


class Part(NamedTuple):
    """inputs: pictures (n, 3, H, W) of uint8, or features (n, N, C).  labels: (n,) from 0."""

    inputs: Tensor
    labels: NDArray[np.int64]

    def batch(self, which: NDArray[np.int64] | slice) -> Tensor:
        chosen = self.inputs[which]
        if chosen.dtype != torch.uint8:
            return chosen
        return ((chosen.float() / 255 - 0.5) / 0.25).contiguous(memory_format=torch.channels_last)


class Parts(NamedTuple):
    train: Part
    validation: Part
    test: Part

    @property
    def classes(self) -> int:
        return int(self.train.labels.max()) + 1


class Budget(NamedTuple):
    """Of one run.  pull: lambda.  patience: evaluations without a better figure that end a problem."""

    steps: int
    evaluate_every: int
    rate: float
    proxies: int
    pool: int
    pull: float
    patience: int
    batch: int
    per_class: int
    weight_decay: float


class Snapshot(NamedTuple):
    """A problem when it was at its best: held-out pictures (n, D) and proxies (classes * k, D), class by class."""

    number: int
    step: int  # of its last evaluation
    figure: float  # its best MAP@R
    radius_before: float | None  # mean over classes: of the next pool, covered by these proxies; None if it did not end
    radius_after: float | None  # the same with the next proxies as well
    plane: Floats
    began: Floats
    converged: Floats
    following: Floats | None  # where the next problem's proxies begin; None where the steps ended


class Course(NamedTuple):
    snapshots: list[Snapshot]
    curve: list[tuple[int, float]]  # step, MAP@R on held-out pictures
    proxies: Floats  # at the best evaluation of all
    validation: Floats  # vectors of the held-out pictures there
    test: Floats  # vectors of the test pictures there

    def arrays(self) -> dict[str, Any]:
        """For ``Context.part``."""
        kept: dict[str, Any] = {"proxies": self.proxies, "validation": self.validation, "test": self.test}
        for name in ("plane", "began", "converged"):
            kept[name] = np.stack([getattr(snapshot, name) for snapshot in self.snapshots])
        following = [snapshot.following for snapshot in self.snapshots if snapshot.following is not None]
        kept["following"] = np.stack(following) if following else np.zeros((0, *self.proxies.shape), np.float32)
        rows = [snapshot[:5] for snapshot in self.snapshots]
        return {**kept, "curve": self.curve, "rows": rows}

    @classmethod
    def of(cls, kept: dict[str, Any]) -> Course:
        following = [*kept["following"], *[None] * (len(kept["rows"]) - len(kept["following"]))]
        snapshots = [
            Snapshot(row[0], row[1], row[2], row[3], row[4], plane, began, converged, after)
            for row, plane, began, converged, after in zip(
                kept["rows"], kept["plane"], kept["began"], kept["converged"], following, strict=True
            )
        ]
        curve = [(int(step), float(figure)) for step, figure in kept["curve"]]
        return cls(snapshots, curve, kept["proxies"], kept["validation"], kept["test"])


def solve(
    kind: str, model: nn.Module, loss: PairObjective, dim: int, parts: Parts, budget: Budget, seed: int, tick: Tick
) -> Course:
    """Train ``model`` (inputs -> vectors in the unit ball) by problems of that kind; it ends with its best weights."""
    train, classes = parts.train, parts.classes
    torch.manual_seed(seed)
    objective: BetweenProxies | BetweenSamples
    if kind == SAMPLES:
        objective = BetweenSamples(loss, classes, budget.proxies)
    else:
        objective = BetweenProxies(loss, classes, dim, budget.proxies)

    def embed(places: NDArray[np.int64]) -> Tensor:
        return vectors_of(model, Part(train.inputs[places], train.labels[places]))

    problems = ProxyProblems(
        model,
        objective,
        train.labels,
        embed,
        pool=budget.pool,
        pull=budget.pull,
        patience=budget.patience,
        alternate=kind != ONE,
        seed=seed,
    )
    optimiser = torch.optim.Adam(_groups(model, objective, budget.weight_decay), lr=budget.rate)
    batches = iter(ClassBatches(train.labels, budget.batch, budget.per_class, seed=seed))
    problems.begin()
    began = _clipped(objective.solution(embed))
    snapshots: list[Snapshot] = []
    curve: list[tuple[int, float]] = []
    best, best_plane, best_proxies, best_weights = -1.0, np.zeros((0, dim), np.float32), began, model.state_dict()
    plane, converged, figure_there = best_plane, began, -1.0  # of this problem
    for step in range(budget.steps + 1):
        if step % budget.evaluate_every == 0 or step == budget.steps:
            vectors = vectors_of(model, parts.validation)
            figure = map_at_r(vectors.numpy(), parts.validation.labels)
            curve.append((step, figure))
            number = problems.number
            ended = problems.report(figure, optimiser)
            if ended is None and problems.waited == 0:
                plane, converged, figure_there = vectors.numpy(), _clipped(problems.solution["proxies"]), figure
                if figure > best:
                    best, best_plane, best_proxies = figure, plane, converged
                    best_weights = deepcopy(model.state_dict())
            if ended is not None:
                following = _clipped(objective.solution(embed))
                radii = ended.radius_before, ended.radius_after
                snapshots.append(Snapshot(number, step, figure_there, *radii, plane, began, converged, following))
                began, plane, converged, figure_there = following, vectors.numpy(), following, figure
        if step < budget.steps:
            _step(model, objective, problems, optimiser, train, np.array([draw.index for draw in next(batches)]))
            tick(1)
    if not snapshots or snapshots[-1].step < budget.steps:
        last = Snapshot(problems.number, budget.steps, figure_there, None, None, plane, began, converged, None)
        snapshots.append(last)
    model.load_state_dict(best_weights)
    return Course(snapshots, curve, best_proxies, best_plane, vectors_of(model, parts.test).numpy())


def _step(
    model: nn.Module,
    objective: BetweenProxies | BetweenSamples,
    problems: ProxyProblems,
    optimiser: torch.optim.Optimizer,
    train: Part,
    chosen: NDArray[np.int64],
) -> None:
    model.train()
    if isinstance(objective, BetweenSamples):
        places = objective.places.numpy()
        both = model(train.batch(np.concatenate([chosen, places])))
        vectors = both[: len(chosen)]
        objective.see(both[len(chosen) :])
    else:
        vectors = model(train.batch(chosen))
    loss = objective(vectors, torch.from_numpy(train.labels[chosen]), None, torch.from_numpy(chosen))
    optimiser.zero_grad(set_to_none=True)
    loss.value.backward()
    problems.add_pull()
    optimiser.step()


@torch.no_grad()
def vectors_of(model: nn.Module, part: Part) -> Tensor:
    """What the model makes of all inputs (n, D), in evaluation mode."""
    was_training = model.training
    model.eval()
    starts = range(0, len(part.labels), EVALUATION_BATCH)
    vectors = torch.cat([model(part.batch(slice(first, first + EVALUATION_BATCH))) for first in starts])
    model.train(was_training)
    return vectors


def map_at_r(vectors: Floats, labels: NDArray[np.int64]) -> float:
    return retrieval_metrics(vectors, labels, distance="l2", ks=(1,))["MAP@R"]


def _clipped(proxies: Tensor) -> Floats:
    found: Floats = clip(proxies.detach()).numpy()
    return found


def _groups(model: nn.Module, objective: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weight decay is for matrices and filters, not for batch norm, biases and proxies."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    proxies = list(objective.parameters())
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": weight_decay}]
    return [*groups, {"params": [*others, *proxies]}] if others or proxies else groups
