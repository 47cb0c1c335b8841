"""Proxy problems on pictures in memory: a single problem, alternating ones, and alternating ones against samples.

``fit`` trains, ``lookalike.training.ccp`` has the problems, and a recorder keeps what a plot needs of every problem:
the held-out pictures at its best evaluation, its converged proxies, and those of the next problem. All kinds have the
same start, batches, steps and rate. Weights are chosen by MAP@R on held-out pictures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lookalike.data.sampler import ClassBatches
from lookalike.geometry import clip
from lookalike.inference.preprocess import to_inputs
from lookalike.models.backbone import in_eval_mode
from lookalike.models.input_spec import InputSpec
from lookalike.objectives import BetweenProxies, BetweenSamples, Loss, PairObjective
from lookalike.objectives.between_proxies import BetweenAnchors
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike.training.ccp import ProxyProblems
from lookalike.training.loop import fit
from lookalike_studies.ccp_geometry.theory import layer_norms
from lookalike_studies.framework.context import Tick

Floats = NDArray[np.float32]

ONE, ALTERNATING, SAMPLES = "one problem", "alternating", "alternating, samples"
EVALUATION_BATCH = 100
SPEC = InputSpec(32, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), resize=32)  # of letters and digits


class DataSplit(NamedTuple):
    """Inputs and labels of one part of the data."""

    inputs: Tensor  # pictures (n, H, W, 3) of uint8, or features (n, N, C)
    labels: NDArray[np.int64]  # (n,) from 0

    def batch(self, positions: NDArray[np.int64] | slice) -> Tensor:
        chosen = self.inputs[positions]
        if chosen.dtype != torch.uint8:
            return chosen
        return to_inputs(chosen, SPEC)


class DataSplits(NamedTuple):
    train: DataSplit
    validation: DataSplit
    test: DataSplit

    @property
    def classes(self) -> int:
        return int(self.train.labels.max()) + 1


class Budget(NamedTuple):
    """Settings of one run."""

    steps: int
    evaluate_every: int
    rate: float
    proxies: int
    pool: int
    pull: float  # lambda
    patience: int  # evaluations without a better metric that end a problem
    batch: int
    per_class: int
    weight_decay: float


class Snapshot(NamedTuple):
    """A problem when it was at its best: held-out pictures (n, D) and proxies (classes, k, D)."""

    number: int
    step: int  # of its last evaluation
    figure: float  # its best MAP@R
    radius_before: float | None  # mean over classes: of the next pool, covered by these proxies; None if it did not end
    radius_after: float | None  # the same with the next proxies as well
    constraint: tuple[float, ...]  # the values of ``ChanceConstraint``
    plane: Floats
    converged: Floats
    following: Floats | None  # where the next problem's proxies begin; None where the steps ended


class Course(NamedTuple):
    snapshots: list[Snapshot]
    curve: list[tuple[int, float]]  # step, MAP@R on held-out pictures
    proxies: Floats  # at the best evaluation of all
    validation: Floats  # vectors of the held-out pictures there
    test: Floats  # vectors of the test pictures there
    train: Floats  # vectors of the training pictures at ``train_sample``
    layers: NDArray[np.float64]  # (layers, 3), norms of the layers, see ``theory.LayerNorm``

    @property
    def best_map_at_r(self) -> float:
        return max(value for _, value in self.curve)

    def arrays(self) -> dict[str, Any]:
        """Arrays and values for ``Context.cached``."""
        following = [snapshot.following for snapshot in self.snapshots if snapshot.following is not None]
        return {
            "proxies": self.proxies,
            "validation": self.validation,
            "test": self.test,
            "train": self.train,
            "layers": self.layers,
            "plane": np.stack([snapshot.plane for snapshot in self.snapshots]),
            "converged": np.stack([snapshot.converged for snapshot in self.snapshots]),
            "following": np.array(following, np.float32),
            "curve": self.curve,
            "rows": [snapshot[:6] for snapshot in self.snapshots],
        }

    @classmethod
    def of(cls, values: dict[str, Any]) -> Course:
        """Restore a course from ``arrays``."""
        snapshots = []
        for i, row in enumerate(values["rows"]):
            following = None
            if i < len(values["following"]):  # the steps may have ended before the last problem did
                following = values["following"][i]
            *numbers, constraint = row
            snapshots.append(
                Snapshot._make([*numbers, tuple(constraint), values["plane"][i], values["converged"][i], following])
            )
        curve = [tuple(point) for point in values["curve"]]
        vectors = [values[name] for name in ("proxies", "validation", "test", "train", "layers")]
        return cls(snapshots, curve, *vectors)


class Learner(nn.Module):
    """Model and pair loss on training pictures by their position: positions (B,) -> loss."""

    def __init__(self, model: nn.Module, objective: BetweenAnchors, train: DataSplit) -> None:
        super().__init__()
        self.model, self.objective, self.train_part = model, objective, train

    def forward(self, positions: Tensor) -> Loss:
        chosen = positions.numpy()
        labels = torch.from_numpy(self.train_part.labels[chosen])
        if isinstance(self.objective, BetweenSamples):
            joined = np.concatenate([chosen, self.objective.places.numpy()])  # together, for batch norm
            vectors, samples = self.model(self.train_part.batch(joined)).tensor_split([len(chosen)])
            self.objective.see(samples)
        else:
            vectors = self.model(self.train_part.batch(chosen))
        return self.objective(vectors, labels, None, positions)


class Recorder:
    """Reports evaluations to the problems, and records what a plot needs of each of them."""

    def __init__(self, problems: ProxyProblems, optimizer: torch.optim.Optimizer, parts: DataSplits) -> None:
        self.problems, self.optimizer = problems, optimizer
        self.validation, self.classes = parts.validation, parts.classes
        self.snapshots: list[Snapshot] = []
        self.curve: list[tuple[int, float]] = []
        self.vectors: Floats = np.zeros(0, np.float32)  # of the held-out pictures at this evaluation
        self.best = -1.0  # best MAP@R of all problems, with proxies and vectors there
        self.best_proxies = self.best_vectors = self.vectors
        problems.begin()
        self._start_problem(-1.0)

    def evaluate(self) -> dict[str, float]:
        """Embed the held-out pictures and measure MAP@R."""
        self.vectors = vectors_of(self.problems.model, self.validation).numpy()
        return {"MAP@R": map_at_r(self.vectors, self.validation.labels)}

    def on_evaluation(self, step: int, metrics: dict[str, float]) -> None:
        """Report the evaluation; record the problem if this ends it."""
        figure = metrics["MAP@R"]
        self.curve.append((step, figure))
        number = self.problems.number
        ended = self.problems.report(figure, self.optimizer)
        if ended is not None:
            following = self._proxies()
            radii = ended.radius_before, ended.radius_after
            self._record(number, step, radii, ended.constraint, following)
            self._start_problem(figure)
        elif self.problems.waited == 0:
            self.plane, self.figure = self.vectors, figure
            self.converged = self._by_class(self.problems.solution["proxies"])
            if figure > self.best:
                self.best, self.best_proxies, self.best_vectors = figure, self.converged, self.vectors

    def finish(self, step: int) -> None:
        """Record the problem that the last step interrupted."""
        if not self.snapshots or self.snapshots[-1].step < step:
            self._record(self.problems.number, step, (None, None), self.problems.constraint, None)

    def _start_problem(self, figure: float) -> None:
        self.converged = self._proxies()
        self.plane, self.figure = self.vectors, figure

    def _record(
        self,
        number: int,
        step: int,
        radii: tuple[float | None, float | None],
        constraint: Sequence[float],
        following: Floats | None,
    ) -> None:
        values = tuple(constraint)
        snapshot = Snapshot(number, step, self.figure, *radii, values, self.plane, self.converged, following)
        self.snapshots.append(snapshot)

    def _proxies(self) -> Floats:
        return self._by_class(self.problems.objective.solution(self.problems.embed))

    def _by_class(self, proxies: Tensor) -> Floats:
        """Clip proxies (classes * k, D) to the unit ball, and return them as (classes, k, D)."""
        grouped: Floats = clip(proxies.detach()).reshape(self.classes, -1, proxies.shape[-1]).numpy()
        return grouped


def solve(
    kind: str, model: nn.Module, loss: PairObjective, dim: int, parts: DataSplits, budget: Budget, seed: int, tick: Tick
) -> Course:
    """Train a model by problems of one kind (ONE, ALTERNATING or SAMPLES); it ends with its best weights.

    ``model`` maps inputs to vectors (n, dim) in the unit ball. ``seed`` decides proxies, pools and batches. ``tick`` is
    called with 1 after every step.
    """
    train = parts.train
    torch.manual_seed(seed)
    objective: BetweenAnchors = BetweenProxies(loss, parts.classes, dim, budget.proxies)
    if kind == SAMPLES:
        objective = BetweenSamples(loss, parts.classes, budget.proxies)
    problems = ProxyProblems(
        model,
        objective,
        train.labels,
        lambda positions: vectors_of(model, DataSplit(train.inputs[positions], train.labels[positions])),
        pool=budget.pool,
        pull=budget.pull,
        patience=budget.patience,
        alternate=kind != ONE,
        seed=seed,
    )
    optimizer = torch.optim.Adam(_groups(model, objective, budget.weight_decay), lr=budget.rate)
    recorder = Recorder(problems, optimizer, parts)
    fit(
        Learner(model, objective, train),
        _batches(train.labels, budget, seed),
        optimizer,
        steps=budget.steps,
        seed=seed,
        evaluate=recorder.evaluate,
        evaluate_every=budget.evaluate_every,
        restore_best=model,
        before_update=problems.add_pull,
        on_step=lambda *_: tick(1),
        on_evaluation=recorder.on_evaluation,
    )
    recorder.finish(budget.steps)
    test = vectors_of(model, parts.test).numpy()
    sample = train_sample(parts)
    trained = vectors_of(model, DataSplit(train.inputs[sample], train.labels[sample])).numpy()
    return Course(
        recorder.snapshots,
        recorder.curve,
        recorder.best_proxies,
        recorder.best_vectors,
        test,
        trained,
        layer_norms(model),
    )


def train_sample(parts: DataSplits) -> NDArray[np.int64]:
    """Return positions of training pictures, evenly spaced, at most as many as there are test pictures."""
    count = min(len(parts.train.labels), len(parts.test.labels))
    return np.linspace(0, len(parts.train.labels) - 1, count).astype(np.int64)


def _batches(labels: NDArray[np.int64], budget: Budget, seed: int) -> Iterator[tuple[Tensor]]:
    for batch in ClassBatches(labels, budget.batch, budget.per_class, seed=seed):
        yield (torch.tensor([draw.index for draw in batch]),)


@torch.no_grad()
def vectors_of(model: nn.Module, part: DataSplit) -> Tensor:
    """Embed all inputs in evaluation mode, (n, D)."""
    starts = range(0, len(part.labels), EVALUATION_BATCH)
    with in_eval_mode(model):
        return torch.cat([model(part.batch(slice(first, first + EVALUATION_BATCH))) for first in starts])


def map_at_r(vectors: Floats, labels: NDArray[np.int64]) -> float:
    return retrieval_metrics(vectors, labels, distance="l2", ks=(1,))["MAP@R"]


def _groups(model: nn.Module, objective: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weight decay is for matrices and filters, not for batch norm, biases and proxies."""
    matrices, others = [], list(objective.parameters())
    for parameter in model.parameters():
        if parameter.dim() > 1:
            matrices.append(parameter)
        else:
            others.append(parameter)
    groups: list[dict[str, Any]] = [{"params": matrices, "weight_decay": weight_decay}]
    if others:
        groups.append({"params": others})
    return groups
