"""The outcome of an improvement: figures before and after on held-out marks and classes, and the decision.

One figure for each kind of evidence decides: AUROC of the held-out marks and MAP@R of the held-out classes. A model
with a lower one is worse, without a tolerance. Both models are measured on the same pairs and pictures.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike.retrieval import retrieval_metrics


class Figures(NamedTuple):
    """How well vectors agree with what is held out.

    Attributes:
        auroc: Probability that a pair marked as same is nearer than one marked as different.
        map_at_r: MAP@R on the held-out classes; None without any.
    """

    auroc: float
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
        after: Figures of the new model; if it was refused, of the fully trained one.
        share: How far the new model went from the old weights, 0, to the trained ones, 1.
        kept_neighbours: Share of the ten nearest neighbours of unmarked pictures that stayed.
        steps: Training steps.
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
    share: float
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
        if self.before.map_at_r is not None and self.after.map_at_r is not None:
            name = f"MAP@R, {self.held_out_classes:,} held-out classes"
            lines.append(_row(name, self.before.map_at_r, self.after.map_at_r))
        lines.append(f"{100 * self.kept_neighbours:.0f} % of the neighbours of unmarked pictures stayed")
        return [*lines, *self.notes]


def measure_marks(similarities: NDArray[np.floating], same: NDArray[np.bool_]) -> float:
    """Return the AUROC of marked pairs: the probability that a pair marked as same is nearer than one as different.

    Args:
        similarities: (m,).
        same: (m,), with both kinds.

    Examples:
        >>> measure_marks(np.array([0.9, 0.6, 0.8, 0.1]), np.array([True, True, False, False]))
        0.75
    """
    positives, negatives = similarities[same], np.sort(similarities[~same])
    smaller = np.searchsorted(negatives, positives, side="left")
    not_larger = np.searchsorted(negatives, positives, side="right")
    return float((smaller + not_larger).mean() / (2 * len(negatives)))


def measure_classes(vectors: NDArray[np.float32], labels: NDArray[np.int64], distance: str) -> float | None:
    """Return MAP@R of labelled pictures among each other; None without pictures."""
    if not len(labels):
        return None
    return retrieval_metrics(vectors, labels, distance=distance)["MAP@R"]


def decide(before: Figures, after: Figures) -> tuple[bool, str]:
    """Decide whether a new model may replace the old one: none of its figures is lower.

    Returns:
        Whether it may, and why.
    """
    losses = find_losses(before, after)
    if losses:
        return False, f"kept the model: the new one is worse on what was held out, {' and '.join(losses)}"
    return True, "installed the new model: it is no worse on what was held out"


def find_losses(before: Figures, after: Figures) -> list[str]:
    """Describe the figures that are lower than before."""
    losses = []
    if after.auroc < before.auroc:
        losses.append(f"AUROC of the marks {100 * before.auroc:.2f} -> {100 * after.auroc:.2f} %")
    if before.map_at_r is not None and after.map_at_r is not None and after.map_at_r < before.map_at_r:
        losses.append(f"MAP@R of the classes {100 * before.map_at_r:.2f} -> {100 * after.map_at_r:.2f} %")
    return losses


def _row(name: str, before: float, after: float) -> str:
    return f"{name:30} {100 * before:8.2f} {100 * after:8.2f}"
