"""Chance-constrained programming: proxy problems, one after the other, each near the solution of the one before.

Repeat, until validation is no longer better:

    proxies <- of a pool of b pictures of each class, the k that lie farthest from the proxies that just converged
               and from each other (greedy k-centre)
    solve      min over weights and proxies of  loss(proxies, batches) + pull / 2 * || weights - last solution ||^2
               until ``patience`` evaluations brought nothing better in this problem

The pull is added to the gradients, after clipping and unscaling, so that it is what it says with any optimiser and any
precision. It is zero in the first problem and acts on the model, not on the proxies. A problem's solution is what it
had when it was at its best: the next pull and the next k-centre start from there, while the weights go on.

In place of proxies there may be samples (``BetweenSamples``): the chosen pictures themselves, which the model sees at
every step along with the batch. What has converged are then their vectors at the problem's best evaluation, so they
are embedded once more there.

The choice goes through the classes by the thousand or so: beyond the pool's vectors it takes the same memory whatever
the number of classes.

Reference: Gürbüz, Can and Alatan, "Deep Metric Learning with Chance Constraints", WACV 2024, Algorithms 1 and 2; the
sign of the pull is that of equation (3.2.11), which Algorithm 1 prints the other way round.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from lookalike.geometry import covering_radius, greedy_k_centre
from lookalike.objectives.between_proxies import BetweenAnchors, BetweenProxies, Embed

Bar = Callable[[int], AbstractContextManager[Callable[[int], None]]]  # number of classes -> tick(classes done)
CHUNK = 2**20  # numbers in the pools of the classes that are looked at together


class Problem(NamedTuple):
    """What there is to say about a problem that ended."""

    number: int
    evaluations: int
    best: float  # the figure it reached
    radius_before: float  # mean over the classes: how far pictures of the next pool lie from its proxies
    radius_after: float  # the same once the next proxies joined them
    moved: float  # || solution - last solution || / || last solution ||


class ProxyProblems:
    """Chooses the proxies, pulls the weights, and decides when a problem is solved.

    model: whose trained weights are pulled.  labels: of the training pictures (n,).  embed: gives their vectors.
    pool: b.  pull: lambda.  patience: evaluations without a better figure that end a problem.
    select: "k-centre", or "random": the first of the pool.  alternate: False stays with the first problem for ever.
    bar: shows how far the choice is. If it raises, or ``embed`` does, nothing has changed.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: BetweenAnchors,
        labels: NDArray[np.int64],
        embed: Embed,
        *,
        pool: int = 12,
        pull: float = 2e-4,
        patience: int = 3,
        select: Literal["k-centre", "random"] = "k-centre",
        alternate: bool = True,
        seed: int = 0,
        bar: Bar | None = None,
    ) -> None:
        if pool < objective.per_class:
            raise ValueError(f"a pool of {pool} pictures cannot give {objective.per_class} proxies for each class")
        self.model, self.objective, self.embed = model, objective, embed
        self.pool, self.pull, self.patience, self.select = pool, pull, patience, select
        self.alternate, self.seed, self.bar = alternate, seed, bar
        self.labels, self.sizes = labels, np.bincount(labels, minlength=objective.classes)
        if len(self.sizes) != objective.classes or not self.sizes.all():
            raise ValueError(f"labels must be 0..{objective.classes - 1}, each of them at least once")
        self.number = 0  # of the problem; 0 before the first
        self.evaluations = 0  # in this problem
        self.waited = 0
        self.best: float | None = None
        self.solution: dict[str, Tensor] = {}  # weights and "proxies" of this problem when it was at its best
        self.last: dict[str, Tensor] = {}  # weights that are pulled towards; empty in the first problem

    @property
    def begun(self) -> bool:
        return self.number > 0

    def begin(self) -> None:
        """Proxies for the first problem."""
        self._open(None)

    @torch.no_grad()
    def add_pull(self) -> None:
        """Between the backward pass and the step of the optimiser."""
        if not self.last or not self.pull:
            return
        for name, parameter in self._trained():
            if parameter.grad is not None:
                parameter.grad.add_(parameter - self.last[name], alpha=self.pull)

    @torch.no_grad()
    def report(self, figure: float, optimiser: Optimizer | None = None) -> Problem | None:
        """An evaluation; if it ends the problem, the next one is opened, and what there is to say comes back.

        optimiser: the one that has the proxies; new ones owe nothing to the old ones' momentum, which is set to 0.
        """
        best, solution, waited = self.best, self.solution, self.waited + 1
        if best is None or figure > best:
            solution = {name: parameter.detach().clone() for name, parameter in self._trained()}
            solution["proxies"] = self.objective.solution(self.embed)
            best, waited = figure, 0
        ended = None
        if self.alternate and waited >= self.patience:
            number, evaluations, moved = self.number, self.evaluations + 1, _moved(self.last, solution)
            before, after = self._open(solution["proxies"])
            self.last = {name: value for name, value in solution.items() if name != "proxies"}
            ended = Problem(number, evaluations, best, before, after, moved)
            best, solution, waited, self.evaluations = None, {}, 0, -1
            if optimiser is not None and isinstance(self.objective, BetweenProxies):
                for value in optimiser.state.get(self.objective.proxies, {}).values():
                    if isinstance(value, Tensor):
                        value.zero_()
        self.best, self.solution, self.waited = best, solution, waited
        self.evaluations += 1
        return ended

    def state_dict(self) -> dict[str, Any]:
        names = ("number", "evaluations", "waited", "best", "solution", "last")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self.objective.anchor_labels.device
        for name, value in state.items():
            tensors = isinstance(value, dict)
            setattr(self, name, {key: tensor.to(device) for key, tensor in value.items()} if tensors else value)

    @torch.no_grad()
    def _open(self, converged: Tensor | None) -> tuple[float, float]:
        """Set the proxies of the next problem; the mean covering radius before and after."""
        places = self._draw_pool(self.number + 1)
        points = self.embed(places.reshape(-1)).unflatten(0, places.shape)  # (classes, b, D)
        seeds = None if converged is None else converged.reshape(len(points), self.objective.per_class, -1)
        chosen, before, after = self._choose(points, seeds)
        rows = torch.arange(len(points)).unsqueeze(1)
        self.objective.choose(places[rows.numpy(), chosen.numpy()], points[rows, chosen])
        self.number += 1
        return before, after

    def _choose(self, points: Tensor, seeds: Tensor | None) -> tuple[Tensor, float, float]:
        """Which of the points (classes, b, D) of each class, (classes, k); the mean covering radius before and after"""
        classes, pool, dim = points.shape
        count, device = self.objective.per_class, self.objective.anchor_labels.device
        step = max(1, CHUNK // (pool * dim))
        chosen, before, after = [], 0.0, 0.0
        with self.bar(classes) if self.bar is not None else nullcontext(lambda _: None) as tick:
            for first in range(0, classes, step):
                part = points[first : first + step].to(device)
                known = None if seeds is None else seeds[first : first + step].to(part)
                if self.select == "random":
                    indices = torch.arange(count, device=device).expand(len(part), -1)
                else:
                    indices = greedy_k_centre(part, count, known).indices
                found = part.gather(1, indices.unsqueeze(-1).expand(-1, -1, dim))
                covered = covering_radius(part, found if known is None else torch.cat((known, found), 1)).sum()
                after += float(covered)
                before += float(covered if known is None else covering_radius(part, known).sum())
                chosen.append(indices.cpu())
                tick(len(part))
        return torch.cat(chosen), before / classes, after / classes

    def _draw_pool(self, number: int) -> NDArray[np.int64]:
        """b pictures of each class (classes, b), by seed and problem; small classes give theirs more than once."""
        order = np.random.default_rng((self.seed, number)).permutation(len(self.labels))
        by_class = order[np.argsort(self.labels[order], kind="stable")]
        starts = np.cumsum(self.sizes) - self.sizes
        return by_class[starts[:, None] + np.arange(self.pool) % self.sizes[:, None]]

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]


def _moved(last: dict[str, Tensor], solution: dict[str, Tensor]) -> float:
    if not last:
        return float("nan")
    difference = sum(float((solution[name] - value).square().sum()) for name, value in last.items())
    return (difference / sum(float(value.square().sum()) for value in last.values())) ** 0.5
