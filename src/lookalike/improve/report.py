"""The outcome of an improvement: figures before and after on held-out marks and classes, and the decision."""

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.retrieval import retrieval_metrics

MARK_TOLERANCE = 0.03  # of AUROC; half of its standard error with 50 held-out marks
CLASS_TOLERANCE = 0.005  # of MAP@R
FOLDS = 10  # of the held-out marks, for the threshold of their accuracy


class Figures(NamedTuple):
    """How well vectors agree with what is held out.

    Attributes:
        auroc: Probability that a pair marked as same is nearer than one marked as different.
        accuracy: Share of the held-out marks that a threshold gets right which is fitted to the others of them.
        map_at_r: MAP@R on the held-out classes; None without any.
    """

    auroc: float
    accuracy: float
    map_at_r: float | None


@dataclass
class Report:
    """What was learnt and decided.

    Attributes:
        installed: Whether the new model replaced the old one.
        reason: Why, as a sentence.
        marks: Marks that were used.
        held_out_marks: How many of them were held out.
        labels: Labelled pictures.
        held_out_classes: How many classes were held out.
        before: Figures of the model before.
        after: Figures of the new model.
        kept_neighbours: Share of the ten nearest neighbours of unmarked pictures that stayed.
        steps: Training steps of the chosen state.
        seconds: Time that it took.
        calibrated: Whether the probabilities were fitted to the new model.
        notes: Further remarks.
        version: Folder of the new version within the index; empty if none was installed.
    """

    installed: bool
    reason: str
    marks: int
    held_out_marks: int
    labels: int
    held_out_classes: int
    before: Figures
    after: Figures
    kept_neighbours: float
    steps: int
    seconds: float
    calibrated: bool = False
    notes: list[str] = field(default_factory=list)
    version: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "before": self.before._asdict(), "after": self.after._asdict()}

    def lines(self) -> list[str]:
        """Describe the outcome for people."""
        lines = [self.reason, "", f"{'':30} {'before':>8} {'after':>8}"]
        lines.append(_row(f"AUROC, {self.held_out_marks:,} held-out marks", self.before.auroc, self.after.auroc))
        lines.append(_row("accuracy on them", self.before.accuracy, self.after.accuracy))
        if self.before.map_at_r is not None and self.after.map_at_r is not None:
            name = f"MAP@R, {self.held_out_classes:,} held-out classes"
            lines.append(_row(name, self.before.map_at_r, self.after.map_at_r))
        lines.append(f"{100 * self.kept_neighbours:.0f} % of the neighbours of unmarked pictures stayed")
        return [*lines, *self.notes]


def measure_marks(similarities: NDArray[np.floating], same: NDArray[np.bool_]) -> tuple[float, float]:
    """Measure how well similarities of marked pairs agree with the marks.

    A threshold for the accuracy is fitted to the other nine tenths of the pairs. One of the pairs that trained would be
    too strict: training moves them farther than all others.

    Args:
        similarities: (m,).
        same: (m,), with both kinds.

    Returns:
        AUROC and accuracy.

    Examples:
        >>> measure_marks(np.array([0.9, 0.8, 0.6, 0.2, 0.1]), np.array([True, True, True, False, False]))
        (1.0, 1.0)
    """
    positives, negatives = similarities[same], np.sort(similarities[~same])
    smaller = np.searchsorted(negatives, positives, side="left")
    not_larger = np.searchsorted(negatives, positives, side="right")
    auroc = float((smaller + not_larger).mean() / (2 * len(negatives)))
    fold = np.arange(len(same)) % FOLDS
    right = 0
    for number in range(FOLDS):
        chosen = fold == number
        threshold = best_threshold(similarities[~chosen], same[~chosen])
        right += int(((similarities[chosen] >= threshold) == same[chosen]).sum())
    return auroc, right / len(same)


def best_threshold(similarities: NDArray[np.floating], same: NDArray[np.bool_]) -> float:
    """Return a similarity that separates the pairs with the fewest mistakes: the middle of the widest gap that does.

    Examples:
        >>> best_threshold(np.array([0.9, 0.5, 0.25]), np.array([True, True, False]))
        0.375
    """
    edges = np.concatenate([[-np.inf], np.unique(similarities), [np.inf]])
    positives, negatives = np.sort(similarities[same]), np.sort(similarities[~same])
    candidates = edges[1:]
    right = len(positives) - np.searchsorted(positives, candidates) + np.searchsorted(negatives, candidates)
    best = np.flatnonzero(right == right.max())
    gaps = np.clip(edges, edges[1] - 1, edges[-2] + 1)
    chosen = best[np.argmax(np.diff(gaps)[best])]
    return float((gaps[chosen] + gaps[chosen + 1]) / 2)


def measure_classes(vectors: NDArray[np.float32], labels: NDArray[np.int64], distance: str) -> float | None:
    """Return MAP@R of labelled pictures among each other; None without pictures."""
    if not len(labels):
        return None
    return retrieval_metrics(vectors, labels, distance=distance)["MAP@R"]


def decide(before: Figures, after: Figures) -> tuple[bool, str]:
    """Decide whether a new model replaces the old one.

    Returns:
        Whether it does, and why.
    """
    if after.auroc < before.auroc - MARK_TOLERANCE:
        change = f"AUROC {before.auroc:.3f} -> {after.auroc:.3f} (tolerance {MARK_TOLERANCE})"
        return False, f"kept the model: the new one is worse on the held-out marks, {change}"
    if (after.map_at_r or 0) < (before.map_at_r or 0) - CLASS_TOLERANCE:
        change = f"MAP@R {100 * (before.map_at_r or 0):.2f} -> {100 * (after.map_at_r or 0):.2f} %"
        tolerance = f"(tolerance {100 * CLASS_TOLERANCE:g} points)"
        return False, f"kept the model: the new one is worse on the held-out classes, {change} {tolerance}"
    return True, f"installed the new model: {_losses(before, after) or 'it is no worse on what was held out'}"


def _losses(before: Figures, after: Figures) -> str:
    """What has become worse within the tolerances, in words; empty if nothing has."""
    losses = []
    if after.auroc < before.auroc:
        losses.append(f"AUROC {before.auroc:.3f} -> {after.auroc:.3f}")
    if (after.map_at_r or 0) < (before.map_at_r or 0):
        losses.append(f"MAP@R {100 * (before.map_at_r or 0):.2f} -> {100 * (after.map_at_r or 0):.2f} %")
    return f"{' and '.join(losses)} {'are' if len(losses) > 1 else 'is'} within the tolerance" if losses else ""


def _row(name: str, before: float, after: float) -> str:
    return f"{name:30} {100 * before:8.2f} {100 * after:8.2f}"
