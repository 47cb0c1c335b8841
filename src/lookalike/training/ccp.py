"""Chance-constrained programming: proxy problems, one after the other, each near the solution of the one before.

Repeat, until validation is no longer better:

    proxies <- of a pool of b pictures of each class, the k that lie farthest from the proxies that just converged
               and from each other (greedy k-centre)
    solve      min over weights and proxies of  loss(proxies, batches) + pull / 2 * || weights - last solution ||^2
               until ``patience`` evaluations brought nothing better in this problem

The pull is added to the gradients, after clipping and unscaling, so that it is what it says with any optimiser and any
precision. It is zero in the first problem and acts on the model, not on the proxies. A problem's solution is what it
had when it was at its best: the next pull and the next k-centre start from there, while the weights go on.

Reference: Gürbüz, Can and Alatan, "Deep Metric Learning with Chance Constraints", WACV 2024, Algorithms 1 and 2; the
sign of the pull is that of equation (3.2.11), which Algorithm 1 prints the other way round.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lookalike.geometry import covering_radius, greedy_k_centre
from lookalike.objectives.between_proxies import BetweenProxies

Embed = Callable[[NDArray[np.int64]], Tensor]  # places in the training set (n,) -> vectors (n, D)


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
    """

    def __init__(
        self,
        model: nn.Module,
        objective: BetweenProxies,
        labels: NDArray[np.int64],
        embed: Embed,
        *,
        pool: int = 12,
        pull: float = 2e-4,
        patience: int = 3,
        select: Literal["k-centre", "random"] = "k-centre",
        alternate: bool = True,
        seed: int = 0,
    ) -> None:
        if pool < objective.per_class:
            raise ValueError(f"a pool of {pool} pictures cannot give {objective.per_class} proxies for each class")
        self.model, self.objective, self.embed = model, objective, embed
        self.pool, self.pull, self.patience, self.select = pool, pull, patience, select
        self.alternate, self.seed = alternate, seed
        self.members = [np.flatnonzero(labels == c) for c in range(objective.classes)]
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
    def report(self, figure: float) -> Problem | None:
        """An evaluation; if it ends the problem, the next one is opened, and what there is to say comes back."""
        self.evaluations += 1
        if self.best is None or figure > self.best:
            self.best, self.waited = figure, 0
            self.solution = {name: parameter.detach().clone() for name, parameter in self._trained()}
            self.solution["proxies"] = self.objective.proxies.detach().clone()
        else:
            self.waited += 1
        if not self.alternate or self.waited < self.patience:
            return None
        moved = self._moved()
        self.last = {name: value for name, value in self.solution.items() if name != "proxies"}
        number, evaluations, best = self.number, self.evaluations, self.best
        before, after = self._open(self.solution["proxies"])
        return Problem(number, evaluations, best, before, after, moved)

    def state_dict(self) -> dict[str, Any]:
        names = ("number", "evaluations", "waited", "best", "solution", "last")
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        device = self.objective.proxies.device
        for name, value in state.items():
            tensors = isinstance(value, dict)
            setattr(self, name, {key: tensor.to(device) for key, tensor in value.items()} if tensors else value)

    @torch.no_grad()
    def _open(self, converged: Tensor | None) -> tuple[float, float]:
        """Set the proxies of the next problem; the mean covering radius before and after."""
        self.number, self.evaluations, self.waited, self.best = self.number + 1, 0, 0, None
        per_class, device = self.objective.per_class, self.objective.proxies.device
        places = self._draw_pool()
        vectors = self.embed(places.reshape(-1)).to(device)
        points = vectors.reshape(*places.shape, -1)  # (classes, b, D)
        seeds = None if converged is None else converged.reshape(len(points), per_class, -1).to(points)
        if self.select == "random":
            chosen = points[:, :per_class]
        else:
            found = greedy_k_centre(points, per_class, seeds)
            chosen = points.gather(1, found.indices.unsqueeze(-1).expand(-1, -1, points.shape[-1]))
        self.objective.set_proxies(chosen)
        centres = chosen if seeds is None else torch.cat((seeds, chosen), 1)
        after = float(covering_radius(points, centres).mean())
        return (after if seeds is None else float(covering_radius(points, seeds).mean())), after

    def _draw_pool(self) -> NDArray[np.int64]:
        """b pictures of each class (classes, b), by seed and problem; small classes give theirs more than once."""
        chance = np.random.default_rng((self.seed, self.number))
        return np.stack([np.resize(chance.permutation(members), self.pool) for members in self.members])

    def _moved(self) -> float:
        if not self.last:
            return float("nan")
        difference = sum(float((self.solution[name] - value).square().sum()) for name, value in self.last.items())
        return (difference / sum(float(value.square().sum()) for value in self.last.values())) ** 0.5

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]
