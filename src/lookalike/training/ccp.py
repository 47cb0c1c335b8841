"""Chance-constrained programming (CCP): a sequence of proxy problems, each near the solution of the one before.

Repeat, until validation no longer improves:

    proxies <- from a pool of b pictures of each class, the k that are farthest from the proxies that just converged
               and from each other (greedy k-centre)
    solve      min over weights and proxies of  loss(proxies, batches) + pull / 2 * || weights - last solution ||^2
               until ``patience`` evaluations did not improve this problem's metric

The pull is added to the gradients after clipping and unscaling, so that it has the same effect with any optimizer and
precision. It acts on the model, not on the proxies. The solution of a problem is its state at its best evaluation: the
next pull and the next k-centre start from there, while the weights continue. Proxies and pool are clipped, or
normalised, as the loss compares them.

The first problem has no pull, and its k-centre starts near the mean of each class, as in the authors' code. With
``printed`` it begins as Algorithm 1 does: the weights are pulled towards the initial ones, and k-centre starts from
random pictures of each class.

At the solution of every problem its chance constraint is measured, see ``chance_constraint``.

Instead of proxies there may be samples (``BetweenSamples``): the chosen pictures themselves, which pass through the
model at every step together with the batch. Their vectors at the problem's best evaluation are the converged ones, so
they are embedded once more there.

Proxies are chosen for about a thousand classes at a time: memory beyond the vectors of the pool does not depend on the
number of classes.

Reference: Gürbüz, Can and Alatan, "Deep Metric Learning with Chance Constraints", WACV 2024, Algorithms 1 and 2. The
sign of the pull follows equation (3.2.11); Algorithm 1 prints the opposite sign.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import isnan
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.optim import Optimizer

from lookalike.geometry import covering_radius, greedy_k_centre
from lookalike.objectives import BetweenSamples
from lookalike.objectives.between_proxies import BetweenAnchors, BetweenProxies, Embed
from lookalike.training.chance_constraint import ChanceConstraint, chance_constraint
from lookalike.training.features import share
from lookalike.training.settings import Settings
from lookalike.training.setup import Setup

Bar = Callable[[int], AbstractContextManager[Callable[[int], None]]]  # number of classes -> tick(classes done)
CONSTRAINT_PICTURES = 1024  # training pictures, drawn once, on which chance constraints are measured
CHUNK = 2**20  # numbers in the pools of the classes that are processed together


class Problem(NamedTuple):
    """Summary of a problem that ended.

    Attributes:
        number: Number of the problem, from 1.
        evaluations: Number of evaluations.
        best: Best value of the monitored metric.
        radius_before: Mean over classes of the distance from pictures of the next pool to the nearest proxy.
        radius_after: The same after the next proxies were added.
        moved: || solution - last solution || / || last solution ||; NaN for a first problem without pull.
        constraint: Chance constraint at the solution.
    """

    number: int
    evaluations: int
    best: float
    radius_before: float
    radius_after: float
    moved: float
    constraint: ChanceConstraint


class ProxyProblems:
    """Chooses the proxies, pulls the weights, and decides when a problem is solved.

    If ``embed`` or ``bar`` raise, nothing has changed.

    Args:
        model: Module whose trained weights are pulled.
        objective: Loss whose proxies or samples are chosen.
        labels: Classes of the training pictures (n,).
        embed: Embeds training pictures by position.
        pool: Pictures of each class that proxies are chosen from (b).
        pull: Strength of the pull (lambda).
        patience: Evaluations without improvement that end a problem.
        select: "k-centre", or "random": the first of the pool.
        alternate: False: stay with the first problem.
        seed: Seed of the pools.
        printed: Begin as Algorithm 1: from random pictures of each class, with a pull in the first problem.
        judged_weights: Context in which the model has the weights that are evaluated; None: the live ones.
        bar: Shows the progress of the choice.
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
        printed: bool = False,
        judged_weights: Callable[[], AbstractContextManager[None]] | None = None,
        bar: Bar | None = None,
    ) -> None:
        if pool < objective.per_class:
            raise ValueError(f"a pool of {pool} pictures cannot give {objective.per_class} proxies for each class")
        self.model, self.objective, self.embed = model, objective, embed
        self.pool, self.pull, self.patience, self.select = pool, pull, patience, select
        self.alternate, self.seed, self.printed, self.bar = alternate, seed, printed, bar
        self.judged_weights = judged_weights or nullcontext
        self.labels, self.sizes = labels, np.bincount(labels, minlength=objective.classes)
        if len(self.sizes) != objective.classes or not self.sizes.all():
            raise ValueError(f"labels must be 0..{objective.classes - 1}, each of them at least once")
        self.number = 0  # of the problem; 0 before the first
        self.evaluations = 0  # in this problem
        self.waited = 0
        self.best: float | None = None
        self.solution: dict[str, Tensor] = {}  # weights and "proxies" at this problem's best evaluation
        self.constraint: list[float] = []  # at the solution, the values of ``ChanceConstraint``
        self.last: dict[str, Tensor] = {}  # weights that are pulled towards; empty: no pull
        self.ended: list[dict[str, float]] = []  # rows of the problems that ended

    @property
    def begun(self) -> bool:
        """Whether the first problem was opened."""
        return self.number > 0

    def begin(self) -> None:
        """Choose the proxies of the first problem."""
        if not self.printed:
            self._open_next(None)
            return
        places = self._draw_pool(0)[:, : self.objective.per_class]
        self._open_next(self.embed(places.reshape(-1)))
        self.last = self._copy_weights()

    @torch.no_grad()
    def add_pull(self) -> None:
        """Add the pull to the gradients, between the backward pass and the optimizer step."""
        if not self.last or not self.pull:
            return
        for name, parameter in self._trained():
            if parameter.grad is not None:
                parameter.grad.add_(parameter - self.last[name], alpha=self.pull)

    @torch.no_grad()
    def report(self, metric: float, optimizer: Optimizer | None = None) -> Problem | None:
        """Take note of an evaluation; open the next problem if this one has ended.

        Args:
            metric: Value of the monitored metric; higher is better.
            optimizer: Optimizer of the proxies. New proxies start without the momentum of the old ones.

        Returns:
            Summary of the problem that ended, or None.
        """
        best, solution, waited, constraint = self.best, self.solution, self.waited + 1, self.constraint
        if best is None or metric > best:
            with self.judged_weights():
                solution = self._copy_weights()
                solution["proxies"] = self.objective.solution(self.embed)
                constraint = list(self._measure_constraint(solution["proxies"]))
            best, waited = metric, 0
        ended = None
        evaluations = self.evaluations + 1
        if self.alternate and waited >= self.patience:
            number, moved = self.number, _relative_change(self.last, solution)
            before, after = self._open_next(solution["proxies"])
            ended = Problem(number, evaluations, best, before, after, moved, ChanceConstraint(*constraint))
            self.last = {name: value for name, value in solution.items() if name != "proxies"}
            best, solution, waited, evaluations, constraint = None, {}, 0, 0, []
            if optimizer is not None:
                self._reset_momentum(optimizer)
        self.best, self.solution, self.waited, self.evaluations = best, solution, waited, evaluations
        self.constraint = constraint
        return ended

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the current problem."""
        names = ("number", "evaluations", "waited", "best", "solution", "constraint", "last", "ended")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        device = self.objective.anchor_labels.device
        for name, value in state.items():
            if isinstance(value, dict):
                value = {key: tensor.to(device) for key, tensor in value.items()}
            setattr(self, name, value)
        if "constraint" not in state and self.best is not None:  # saved by an earlier version
            self.constraint = 4 * [float("nan")]

    @torch.no_grad()
    def _open_next(self, converged: Tensor | None) -> tuple[float, float]:
        """Set the proxies of the next problem; return the mean covering radius before and after."""
        positions = self._draw_pool(self.number + 1)
        points = self.embed(positions.reshape(-1)).unflatten(0, positions.shape)  # (classes, b, D)
        if converged is not None:
            converged = self.objective.comparable(converged).reshape(len(points), self.objective.per_class, -1)
        chosen, before, after = self._choose(self.objective.comparable(points), converged)
        rows = torch.arange(len(points)).unsqueeze(1)
        self.objective.choose(positions[rows.numpy(), chosen.numpy()], points[rows, chosen])
        self.number += 1
        return before, after

    def _choose(self, points: Tensor, converged: Tensor | None) -> tuple[Tensor, float, float]:
        """Indices (classes, k) into points (classes, b, D), and the mean covering radius before and after."""
        classes, pool, dim = points.shape
        count, device = self.objective.per_class, self.objective.anchor_labels.device
        step = max(1, CHUNK // (pool * dim))
        chosen, sum_before, sum_after = [], 0.0, 0.0
        bar = nullcontext(lambda _: None) if self.bar is None else self.bar(classes)
        with bar as tick:
            for first in range(0, classes, step):
                candidates = points[first : first + step].to(device)
                old = None
                if converged is not None:
                    old = converged[first : first + step].to(candidates)
                if self.select == "random":
                    indices = torch.arange(count, device=device).expand(len(candidates), -1)
                else:
                    indices = greedy_k_centre(candidates, count, old).indices
                proxies = candidates.gather(1, indices.unsqueeze(-1).expand(-1, -1, dim))
                if old is not None:
                    proxies = torch.cat((old, proxies), 1)
                radius = float(covering_radius(candidates, proxies).sum())
                sum_after += radius
                if old is not None:
                    radius = float(covering_radius(candidates, old).sum())
                sum_before += radius
                chosen.append(indices.cpu())
                tick(len(candidates))
        return torch.cat(chosen), sum_before / classes, sum_after / classes

    def _measure_constraint(self, anchors: Tensor) -> ChanceConstraint:
        objective = self.objective
        positions = np.random.default_rng((self.seed, 0)).permutation(len(self.labels))[:CONSTRAINT_PICTURES]
        device = objective.anchor_labels.device
        vectors = self.embed(positions).to(device)
        if objective.objective.normalise:
            vectors = normalize(vectors, dim=-1)
        return chance_constraint(
            vectors,
            torch.from_numpy(self.labels[positions]).to(device),
            anchors.to(vectors),
            objective.anchor_labels,
            objective.objective.boundary(),
            same=objective.own_pictures(torch.from_numpy(positions).to(device)),
        )

    def _draw_pool(self, number: int) -> NDArray[np.int64]:
        """Draw b pictures of each class (classes, b), by seed and problem; small classes repeat theirs."""
        order = np.random.default_rng((self.seed, number)).permutation(len(self.labels))
        by_class = order[np.argsort(self.labels[order], kind="stable")]
        starts = np.cumsum(self.sizes) - self.sizes
        return by_class[starts[:, None] + np.arange(self.pool) % self.sizes[:, None]]

    def _reset_momentum(self, optimizer: Optimizer) -> None:
        if isinstance(self.objective, BetweenProxies):
            for value in optimizer.state.get(self.objective.proxies, {}).values():
                if isinstance(value, Tensor):
                    value.zero_()

    def _copy_weights(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self._trained()}

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]


def create_problems(
    setup: Setup, model: nn.Module, embed: Embed, judged_weights: Callable[[], AbstractContextManager[None]]
) -> ProxyProblems | None:
    """Create the problems of a run.

    Args:
        setup: The run.
        model: Module whose trained weights are pulled.
        embed: Embeds training pictures by position.
        judged_weights: Context in which the model has the weights that are evaluated.

    Returns:
        The problems; None without CCP.
    """
    settings = setup.settings
    if setup.anchors is None:
        return None
    return ProxyProblems(
        model,
        setup.anchors,
        setup.train.labels,
        embed,
        pool=settings.ccp_pool,
        pull=settings.ccp_pull,
        patience=settings.ccp_patience,
        select=settings.ccp_select,
        alternate=settings.ccp_alternate,
        seed=settings.seed,
        printed=settings.ccp_printed,
        judged_weights=judged_weights,
        bar=partial(setup.display.bar, what="choosing proxies", unit=" classes"),
    )


class Samples:
    """Inputs of the pictures that a problem compares with: this process's share, read once for each problem.

    They are not augmented, because a problem is about these very pictures. They stay in memory: with one process,
    classes * proxies inputs.

    Args:
        setup: The run.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.problem = 0  # whose samples are in memory
        self.inputs: Tensor | None = None

    def of(self, problem: int) -> Tensor | None:
        """Return the samples of problem number ``problem``; None if it compares with proxies."""
        objective, fabric = self.setup.anchors, self.setup.fabric
        if isinstance(objective, BetweenSamples) and problem != self.problem:
            count = len(objective.places)
            positions = objective.places.cpu().numpy()[share(count, fabric.global_rank, fabric.world_size)]
            inputs = torch.cat(list(self.setup.feed.evaluation(self.setup.train.take(positions))))
            missing = -(-count // fabric.world_size) - len(inputs)  # shares have equal length; the surplus is dropped
            self.inputs = torch.cat((inputs, inputs[:missing])).to(fabric.device)
            self.problem = problem
        return self.inputs


def as_row(problem: Problem, settings: Settings) -> dict[str, float]:
    """Return the values of a solved problem for the log."""
    row = {
        "problem": problem.number,
        "problem steps": _steps(problem, settings),
        "problem best": problem.best,
        "radius before": problem.radius_before,
        "radius after": problem.radius_after,
        **_constraint_row(problem.constraint),
    }
    if not isnan(problem.moved):
        row["moved"] = problem.moved
    return row


def all_rows(problems: ProxyProblems) -> list[dict[str, float]]:
    """Return the rows of all problems for the summary, with the one that the run's end interrupted."""
    rows = list(problems.ended)
    if problems.best is not None:
        constraint = ChanceConstraint(*problems.constraint)
        rows.append({"problem": problems.number, "problem best": problems.best, **_constraint_row(constraint)})
    return rows


def _constraint_row(constraint: ChanceConstraint) -> dict[str, float]:
    return {name.replace("_", " "): value for name, value in constraint._asdict().items()}


def as_sentence(problem: Problem, settings: Settings) -> str:
    """Describe a solved problem for people."""
    text = f"problem {problem.number} is solved: {_steps(problem, settings)} steps, "
    text += f"{settings.monitor} {100 * problem.best:.2f}, "
    text += f"covering radius {problem.radius_before:.3f} -> {problem.radius_after:.3f}"
    constraint = problem.constraint
    text += f", violated pairs {constraint.violation:.1%} (Markov bound {constraint.violation_bound:.1%}"
    text += f", epsilon {constraint.epsilon:.1%})"
    if not isnan(problem.moved):
        text += f", weights moved by {problem.moved:.2%}"
    return text


def _steps(problem: Problem, settings: Settings) -> int:
    evaluations = problem.evaluations
    if problem.number == 1 and settings.count_start:
        evaluations -= 1  # the one before the first step
    return evaluations * settings.evaluate_every


def _relative_change(last: dict[str, Tensor], solution: dict[str, Tensor]) -> float:
    if not last:
        return float("nan")
    difference = sum(float((solution[name] - value).square().sum()) for name, value in last.items())
    return (difference / sum(float(value.square().sum()) for value in last.values())) ** 0.5
