"""Trains a head on marks and labels, with ``lookalike.training.loop.fit``.

    loss = marks * L(marked pairs) + labels * L(labelled pictures) + kept * L(kept similarities)

A batch has marked pictures, labelled ones of several classes, and others. L is multi-similarity. After the last step
the weights go back towards those before, a quarter of the way at a time, until no figure on what is held out is lower
than before. The best of many states on a few dozen held-out marks would be a matter of chance. The settings below were
chosen on CUB's first 100 classes; docs/how-to/improve.md has figures of the others.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lookalike import objectives
from lookalike.data.sampler import ClassBatches
from lookalike.improve.evidence import Evidence, Positions, Split, known_relations
from lookalike.improve.inputs import Inputs, head_vectors
from lookalike.improve.report import Figures, decide, measure_classes, measure_marks
from lookalike.models import Head
from lookalike.objectives import Composed, KeptSimilarities, Labelled, MarkedPairs, Objective, PairObjective
from lookalike.training.loop import fit
from lookalike.training.model import Learner, relative_rate

LOSS = "multi-similarity"
MARKS, LABELS, KEPT = 1.0, 1.0, 200.0  # weights
STEPS = 100
SHARES = (1.0, 0.75, 0.5, 0.25)  # of the change of the weights, in the order of trying
PER_CLASS = 4
RATE = 1.0  # of ``relative_rate``
NEIGHBOURS = 10
NEIGHBOUR_SAMPLE = 500

Batch = tuple[Tensor, Tensor, Tensor]


class Learnt(NamedTuple):
    """The outcome of training; the head of the inputs has the chosen weights.

    Attributes:
        before: Figures of the head before.
        after: Figures of the chosen weights; of the fully trained ones if all are worse than before.
        share: Of the change of the weights that was kept.
        steps: Number of training steps.
    """

    before: Figures
    after: Figures
    share: float
    steps: int


def learn(
    inputs: Inputs,
    evidence: Evidence,
    split: Split,
    *,
    distance: str,
    steps: int = STEPS,
    seed: int = 0,
    kept: float = KEPT,
    on_step: Callable[[int], None] = lambda _: None,
) -> Learnt:
    """Train the head of ``inputs`` and keep as much of the change as is no worse on what is held out.

    Args:
        inputs: The head and what it takes.
        evidence: Marks and labels.
        split: Which of them train.
        distance: Of the model, "cosine" or "l2".
        steps: Number of steps.
        seed: Seed of the batches.
        kept: Weight of the similarities to keep.
        on_step: Called after every step with the number of steps done. It may raise to stop.

    Returns:
        Figures before and after.
    """
    training = split.training
    pictures, relation = known_relations(evidence.pairs[training], evidence.same[training])
    labels = _with_partners(split.training_labels)
    learner = Learner(inputs.head, _objective(inputs, pictures, relation, labels, kept))
    assert inputs.head is learner.model
    weight = inputs.head.projection.weight if inputs.head.projection is not None else None
    rate = RATE * relative_rate(weight) if weight is not None else 1e-3
    optimizer = torch.optim.Adam([value for value in inputs.head.parameters() if value.requires_grad], lr=rate)
    judge = Judge(inputs, evidence, split, distance)
    before = judge.measure()
    old = _copy_of(inputs.head)
    fit(
        learner,
        batches(inputs, labels, pictures, seed),
        optimizer,
        steps=steps,
        seed=seed,
        clip_norm=10.0,
        on_step=lambda step, _: on_step(step),
    )
    new = _copy_of(inputs.head)
    tried = []
    for share in SHARES:
        inputs.head.load_state_dict(_between(old, new, share))
        after = judge.measure()
        tried.append(after)
        if decide(before, after)[0]:
            return Learnt(before, after, share, steps)
    inputs.head.load_state_dict(new)
    return Learnt(before, tried[0], SHARES[0], steps)


def _copy_of(head: Head) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in head.state_dict().items()}


def _between(old: dict[str, Tensor], new: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    """Weights on the way from the old ones to the new ones; counters are as the new ones."""
    weights = {}
    for name, value in new.items():
        weights[name] = torch.lerp(old[name], value, share) if value.is_floating_point() else value
    return weights


class Judge:
    """Measures the head on held-out marks and classes."""

    def __init__(self, inputs: Inputs, evidence: Evidence, split: Split, distance: str) -> None:
        self._inputs, self._distance = inputs, distance
        self._same = evidence.same[split.held_out]
        self._pictures, places = np.unique(evidence.pairs[split.held_out], return_inverse=True)
        self._places = places.reshape(-1, 2)
        self._class_pictures = split.held_out_pictures
        self._class_labels = evidence.labels[split.held_out_pictures]

    def measure(self) -> Figures:
        """Measure the head as it is now, which must be in eval mode."""
        head = self._inputs.head.eval()
        vectors = head_vectors(head, self._inputs, self._pictures)
        similarities = pair_similarities(vectors, self._places, self._distance)
        class_vectors = head_vectors(head, self._inputs, self._class_pictures)
        map_at_r = measure_classes(class_vectors, self._class_labels, self._distance)
        return Figures(measure_marks(similarities, self._same), map_at_r)


def batches(inputs: Inputs, labels: Positions, marked: Positions, seed: int) -> Iterator[Batch]:
    """Yield endless batches: inputs, labels and positions of marked, labelled and other pictures.

    Args:
        inputs: Where the inputs come from.
        labels: (n,) classes that train, or -1.
        marked: Positions of the marked pictures.
        seed: Seed of the draws.
    """
    rng = np.random.default_rng(seed)
    most_marked, most_labelled, most_others = inputs.batch
    others = np.setdiff1d(np.arange(len(labels)), marked)
    labelled = np.flatnonzero(labels >= 0)
    draws: Iterator[list[int]] | None = None
    if len(labelled):
        draws = _labelled_draws(labels[labelled], most_labelled, seed)
    while True:
        chosen = [_draw(rng, marked, most_marked), _draw(rng, others, most_others)]
        if draws is not None:
            chosen.append(labelled[next(draws)])
        positions = np.unique(np.concatenate(chosen))
        yield inputs.read(positions), torch.from_numpy(labels[positions]), torch.from_numpy(positions)


def pair_similarities(vectors: NDArray[np.float32], pairs: Positions, distance: str) -> NDArray[np.float64]:
    """Similarities (m,) of pairs of vectors: cosines, or negative distances."""
    first, second = vectors[pairs[:, 0]].astype(np.float64), vectors[pairs[:, 1]].astype(np.float64)
    if distance == "l2":
        distances: NDArray[np.float64] = np.linalg.norm(first - second, axis=1)
        return -distances
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines: NDArray[np.float64] = (first * second).sum(1) / np.maximum(norms, 1e-12)
    return cosines


def kept_neighbours(before: NDArray[np.float32], after: NDArray[np.float32], marked: Positions, distance: str) -> float:
    """Return the share of the nearest neighbours of unmarked pictures that training has kept, from a sample."""
    from lookalike.retrieval.search import neighbours

    others = np.setdiff1d(np.arange(len(before)), marked)
    count = min(NEIGHBOURS + 1, len(before))
    if count < 2 or not len(others):
        return 1.0
    sample = np.random.default_rng(0).permutation(others)[:NEIGHBOUR_SAMPLE]
    kept = 0
    old = np.asarray(neighbours(before[sample], before, count, distance=distance).indices)
    new = np.asarray(neighbours(after[sample], after, count, distance=distance).indices)
    for picture, old_row, new_row in zip(sample.tolist(), old, new, strict=True):
        kept += len(set(old_row.tolist()) & set(new_row.tolist()) - {picture})
    return kept / ((count - 1) * len(sample))


def _objective(
    inputs: Inputs, pictures: Positions, relation: NDArray[np.int8], labels: Positions, kept: float
) -> Objective:
    marked = torch.from_numpy(pictures)
    terms: dict[str, tuple[float, Objective]] = {
        "marks": (MARKS, MarkedPairs(_pair_loss(), marked, torch.from_numpy(relation))),
        "kept": (kept, KeptSimilarities(torch.from_numpy(inputs.start), marked)),
    }
    if (labels >= 0).any():
        terms["labels"] = (LABELS, Labelled(_pair_loss()))
    return Composed(terms)


def _pair_loss() -> PairObjective:
    loss = objectives.create(LOSS)
    assert isinstance(loss, PairObjective)
    return loss


def _with_partners(labels: Positions) -> Positions:
    """Labels counted from 0, without those of single pictures; all -1 if fewer than two classes are left."""
    counts = np.bincount(labels[labels >= 0], minlength=1)
    usable = np.flatnonzero(counts >= 2)
    if len(usable) < 2:
        return np.full_like(labels, -1)
    numbers = np.full(len(counts) + 1, -1)  # the last entry is for -1
    numbers[usable] = np.arange(len(usable))
    return numbers[labels]


def _labelled_draws(labels: Positions, size: int, seed: int) -> Iterator[list[int]]:
    classes = min(size // PER_CLASS, int(labels.max()) + 1)
    for draws in ClassBatches(labels, classes * PER_CLASS, PER_CLASS, seed=seed):
        yield [draw.index for draw in draws]


def _draw(rng: np.random.Generator, positions: Positions, most: int) -> Positions:
    return rng.permutation(positions)[:most]
