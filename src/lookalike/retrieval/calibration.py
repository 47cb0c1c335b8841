"""Distances as probabilities: P(same | distance), and a test for "nothing here looks the same". Numpy only.

P(same | distance) depends on what is compared. Of all pairs of a collection hardly any are the same; among the results
of a search many are. So it is fitted on what a search shows: every picture of held-out classes is searched among the
others, and each of its ten nearest neighbours gives one pair (distance, same class or not). The fit is isotonic: the
decreasing function with the smallest squared error.

What a distance means also depends on the query. Where many kinds look alike, even strangers are near. So the fit is not
over the distance d itself but over d / d_50, with d_50 the distance of the query to its 50th neighbour: it needs no
labels, and the probabilities hold better on classes that are harder or easier to tell apart.

A larger collection has more pictures of other classes at every distance, so the odds of "same" fall. Where the growth
makes it denser, d_50 shrinks and shows it already; where new kinds are merely added elsewhere, it does not. ``adapted``
divides the odds by the square root of the growth, a compromise: on drawn clusters of several sizes and spreads it
erred least among the exponents 0, 1/4, 1/2, 3/4 and 1. The odds of "same" grow with the number of pictures of the
query's class. If the collection has labels, their class sizes are used; else classes are taken to be as large as those
of the fit. ``lookalike calibrate`` fits to the labels of an index.

The test is conformal. Let s_1 ... s_n be the distances of queries to their nearest neighbour, for queries whose class
is present. For a new query with the nearest neighbour at s,

    p = (1 + number of s_i >= s) / (n + 1)

If its class is present and it is drawn like the others, p <= error_rate happens with a probability of at most
error_rate. So "nothing here looks the same" is said wrongly no more often than that.

Another collection has other distances, and the promise does not hold there. So the same test is also made with the
collection's own pictures, each searched among the others: s_1 ... s_n are then the distances of up to 300 of them to
their nearest neighbour. This needs no labels, and holds for queries that are drawn like the collection. Pictures
whose class has no other only make it more careful. "Nothing" is said if both tests say so.
"""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lookalike._util.checksums import write_checked
from lookalike._util.untrusted import read_json

FILE = "calibration.json"
WHOLE_FILE = "calibration-whole.json"  # of a run, for whole pictures; ``FILE`` is then for the centre crop
FORMAT = 2
READABLE = (1, 2)  # format 1 has no ``rank``
NEIGHBOURS = 10  # per query
RANK = 50  # of the neighbour that distances are compared with; 25 and 100 erred about as much
SMALLEST_REFERENCE = 1e-6  # copies lie at distance 0
SMALLEST_SAME = 0.1  # other pictures of a class, so that odds stay above 0
MOST_QUERIES = 5_000
BLOCK = 512  # queries compared at once
MOST_KNOTS = 1_000
MOST_NEAREST = 2_000
RELIABILITY_BINS = 10
FEWEST_QUERIES = 20
SEED = 0

Floats = NDArray[np.float64]


class Neighbourhoods(NamedTuple):
    """Queries and what a search among the others finds for them.

    Attributes:
        distances: (q, k) to the nearest neighbours, nearest first; infinite where there are fewer.
        same: (q, k), whether they have the label of the query.
        labels: (q,) of the queries.
        present: (q,), whether another picture has the label of the query.
        nearest_other: (q,), distance to the nearest picture with another label.
        references: (q,), distance to the neighbour of rank ``RANK``, or to the last one where there are fewer.
        same_size: Mean number of other pictures with the label of the query.
        other_size: Mean number of pictures with another label.
    """

    distances: Floats
    same: NDArray[np.bool_]
    labels: NDArray[Any]
    present: NDArray[np.bool_]
    nearest_other: Floats
    references: Floats
    same_size: float
    other_size: float


@dataclass(frozen=True)
class Calibration:
    """P(same | distance) and the nearest distances of known queries.

    Attributes:
        distances: Knots of the fit, ascending; as multiples of the query's reference if there is a ``rank``.
        probabilities: P(same) at the knots, descending; linear in between.
        nearest: Distances of known queries to their nearest neighbour, ascending.
        source: The pictures that it was fitted on, for people.
        queries: Number of queries.
        classes: Number of their classes.
        same_size: Mean number of other pictures with the class of a query.
        other_size: Mean number of pictures with another class.
        unseen: Whether the model was not trained on these classes.
        error: Mean difference of predicted and observed shares, where each half of the classes is predicted from the
            other half. With few or unlike classes it is large.
        reliability: Rows (predicted, observed, share of the pairs) of the same predictions, in bins of equal size.
        rank: Of the neighbour whose distance is the reference; 0, as in earlier versions: distances as they are.
        format: Version of the file.
    """

    distances: list[float]
    probabilities: list[float]
    nearest: list[float]
    source: str
    queries: int
    classes: int
    same_size: float
    other_size: float
    unseen: bool
    error: float
    reliability: list[list[float]] = field(default_factory=list)
    rank: int = 0
    format: int = FORMAT

    def probability(self, distances: Any, references: Any = None) -> Floats:
        """P(same) of results.

        Args:
            distances: Of the results.
            references: Distance of their query to its neighbour of rank ``rank``, or to its last neighbour if it has
                fewer; one number or as many as distances. Not needed if ``rank`` is 0.

        Raises:
            ValueError: If there are no references, but a rank.
        """
        distances = np.asarray(distances, np.float64)
        if self.rank:
            if references is None:
                raise ValueError(f"this calibration needs the distance to neighbour {self.rank} of the query")
            distances = _relative(distances, references)
        return np.interp(distances, self.distances, self.probabilities)

    def adapted(self, pictures: int, same_size: float | None = None) -> "Calibration":
        """Adapt the probabilities to a collection, see above.

        Args:
            pictures: Number of its pictures.
            same_size: Mean number of other pictures with the class of a picture; None: unknown, as in the fit.
        """
        known = self.same_size if same_size is None else same_size
        others = max(1.0, pictures - 1 - known)
        ratio = self.other_size / others
        if self.rank:
            ratio = ratio**0.5
        ratio *= max(known, SMALLEST_SAME) / max(self.same_size, SMALLEST_SAME)
        odds = np.array(self.probabilities) / (1 - np.array(self.probabilities)) * ratio
        return replace(self, probabilities=(odds / (1 + odds)).tolist())

    def p_value(self, nearest: float) -> float:
        """The p-value of "a picture of the query's class is here", from the distance to the nearest picture."""
        return conformal_p_value(self.nearest, nearest)

    def p_value_here(self, nearest: float) -> float:
        """The same from the collection's own pictures; 0 where none are known, as in the calibration itself."""
        del nearest
        return 0.0

    def describe(self) -> str:
        """One line for people."""
        return f"calibrated on {self.source}, {self.queries:,} pictures of {self.classes:,} classes"

    def write(self, folder: Path, name: str = FILE) -> None:
        """Write ``calibration.json``, or another name, into a folder."""
        write_checked(folder / name, json.dumps(asdict(self)) + "\n")

    @classmethod
    def read(cls, folder: Path, name: str = FILE) -> "Calibration | None":
        """Read ``calibration.json``, or another name, from a folder; None if there is none.

        Raises:
            ValueError: If the file is damaged or has another format.
        """
        file = folder / name
        if not file.is_file():
            return None
        content = read_json(file)
        try:
            calibration = cls(**content)
            _check(calibration)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{file} is damaged: {error}; lookalike calibrate writes a new one") from None
        return calibration


def conformal_p_value(known: Any, nearest: float) -> float:
    """The p-value of a nearest distance, from the ascending nearest distances of known queries.

    Examples:
        >>> conformal_p_value([0.1, 0.2, 0.3], 0.25)
        0.5
    """
    farther = len(known) - int(np.searchsorted(known, nearest, side="left"))
    return (1 + farther) / (len(known) + 1)


def _relative(distances: Any, references: Any) -> Floats:
    relative: Floats = distances / np.maximum(references, SMALLEST_REFERENCE)
    return relative


def _check(calibration: Calibration) -> None:
    if calibration.format not in READABLE:
        raise ValueError(f"it has the format {calibration.format!r}, this version reads up to {FORMAT}")
    if type(calibration.rank) is not int or calibration.rank < 0:
        raise ValueError(f"the rank must be a whole number from 0, got {calibration.rank!r}")
    knots = np.array([calibration.distances, calibration.probabilities], np.float64)
    nearest = np.array(calibration.nearest, np.float64)
    if knots.ndim != 2 or not knots.size or nearest.ndim != 1 or not np.isfinite(knots).all():
        raise ValueError("distances and probabilities must be numbers")
    if np.any(np.diff(knots[0]) < 0) or np.any(np.diff(nearest) < 0) or knots[1].min() <= 0 or knots[1].max() >= 1:
        raise ValueError("distances must ascend and probabilities lie between 0 and 1")


def check_confidence(name: str, value: float) -> None:
    """Check a confidence or an error rate.

    Raises:
        ValueError: If it is not between 0 and 1, both excluded.
    """
    if not 0 < value < 1:
        raise ValueError(f"{name} must be between 0 and 1, both excluded (0.9 is 90 %), got {value:g}")


def find_neighbourhoods(
    vectors: Any,
    labels: Any,
    *,
    distance: str = "cosine",
    queries: NDArray[np.int64] | None = None,
    gallery: NDArray[np.int64] | None = None,
    k: int = NEIGHBOURS,
) -> Neighbourhoods:
    """Search pictures among the others.

    Args:
        vectors: (n, D).
        labels: (n,).
        distance: "cosine" or "l2".
        queries: Positions of the queries; None: all. At most 5,000 of them are drawn.
        gallery: Positions of the pictures that are searched; None: all. A query never finds itself.
        k: Number of neighbours.

    Returns:
        The neighbourhoods.
    """
    vectors = np.asarray(vectors, np.float32)
    labels = np.asarray(labels)
    _, codes = np.unique(labels, return_inverse=True)
    everything = np.arange(len(vectors))
    queries = everything if queries is None else queries
    gallery = everything if gallery is None else gallery
    if len(queries) > MOST_QUERIES:
        queries = np.sort(np.random.default_rng(SEED).choice(queries, MOST_QUERIES, replace=False))
    if distance == "cosine":
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    k = min(k, len(gallery))
    rank = max(k, min(RANK, len(gallery) - int(np.isin(queries, gallery).any())))
    blocks = []
    for start in range(0, len(queries), BLOCK):
        rows = queries[start : start + BLOCK]
        distances = _distances(vectors[rows], vectors[gallery], distance)
        distances[rows[:, None] == gallery[None]] = np.inf
        same = codes[rows][:, None] == codes[gallery][None]
        nearest = np.argpartition(distances, rank - 1, axis=1)[:, :rank]
        order = np.argsort(np.take_along_axis(distances, nearest, 1), axis=1, kind="stable")
        nearest = np.take_along_axis(nearest, order, 1)
        reference = last_finite(np.take_along_axis(distances, nearest, 1))
        nearest = nearest[:, :k]
        own_class = (same & np.isfinite(distances)).sum(1)
        other = np.where(same, np.inf, distances).min(1)
        near = np.take_along_axis(distances, nearest, 1)
        blocks.append((near, np.take_along_axis(same, nearest, 1), own_class, other, reference, (~same).sum(1)))
    near, same, own_class, other, references, others = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    return Neighbourhoods(
        distances=near.astype(np.float64),
        same=same,
        labels=labels[queries],
        present=own_class > 0,
        nearest_other=other.astype(np.float64),
        references=references,
        same_size=float(own_class.mean()),
        other_size=float(others.mean()),
    )


def last_finite(distances: Any) -> Floats:
    """The largest finite distance of every row of (q, r), 1 in a row without one: the references of queries."""
    distances = np.asarray(distances, np.float64)
    largest: Floats = np.where(np.isfinite(distances), distances, -np.inf).max(1, initial=-np.inf)
    return np.where(np.isfinite(largest), largest, 1.0)


def _distances(queries: NDArray[np.float32], references: NDArray[np.float32], distance: str) -> NDArray[np.float32]:
    products = queries @ references.T
    if distance == "cosine":
        return 1 - products
    squares = (queries**2).sum(1)[:, None] + (references**2).sum(1)[None] - 2 * products
    return np.sqrt(np.clip(squares, 0, None))


def fit(neighbourhoods: Neighbourhoods, source: str, *, unseen: bool) -> Calibration:
    """Fit P(same | distance).

    Args:
        neighbourhoods: Queries with their neighbours.
        source: The pictures, for people.
        unseen: Whether the model was not trained on their classes.

    Returns:
        The calibration. Its ``error`` is measured on classes that the fit has not seen.

    Raises:
        ValueError: If there are fewer than two classes, fewer than 20 queries, or no pair of the same class.
    """
    classes, codes = np.unique(neighbourhoods.labels, return_inverse=True)
    if len(classes) < 2 or len(codes) < FEWEST_QUERIES:
        raise ValueError(
            f"a calibration needs at least {FEWEST_QUERIES} labelled pictures of 2 classes, "
            f"got {len(codes)} of {len(classes)}"
        )
    if not neighbourhoods.present.any():
        raise ValueError("a calibration needs two pictures of one class, but every picture has a class of its own")
    distances, same, owners = _pairs(neighbourhoods, codes)
    half = np.random.default_rng(SEED).permutation(len(classes))[codes][owners] % 2
    predicted = np.zeros(len(distances))
    errors = []
    for part in (0, 1):
        chosen = half == part
        predicted[chosen] = np.interp(distances[chosen], *_isotonic(distances[~chosen], same[~chosen]))
        errors.append(calibration_error(predicted[chosen], same[chosen]))
    knots = _isotonic(distances, same)
    nearest = np.sort(neighbourhoods.distances[neighbourhoods.present, 0])
    if len(nearest) > MOST_NEAREST:
        nearest = np.quantile(nearest, np.linspace(0, 1, MOST_NEAREST))
    return Calibration(
        distances=knots[0].tolist(),
        probabilities=knots[1].tolist(),
        nearest=nearest.tolist(),
        source=source,
        queries=len(codes),
        classes=len(classes),
        same_size=neighbourhoods.same_size,
        other_size=neighbourhoods.other_size,
        unseen=unseen,
        error=float(np.mean(errors)),
        reliability=reliability(predicted, same),
        rank=RANK,
    )


def _pairs(neighbourhoods: Neighbourhoods, codes: NDArray[Any]) -> tuple[Floats, NDArray[np.bool_], NDArray[np.int64]]:
    """Distances as multiples of the reference, whether they are the same, and the queries of all pairs."""
    exists = np.isfinite(neighbourhoods.distances)
    owners = np.broadcast_to(np.arange(len(codes))[:, None], exists.shape)
    relative = _relative(neighbourhoods.distances, neighbourhoods.references[:, None])
    return relative[exists], neighbourhoods.same[exists], owners[exists]


def _isotonic(distances: Floats, same: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """Knots of the decreasing fit. One pair of each kind is added to every block, so that none is certain."""
    if not len(distances):
        return np.zeros(1), np.full(1, 0.5)
    order = np.argsort(distances, kind="stable")
    blocks: list[list[float]] = []  # [sum of distances, same, pairs]
    for chunk in np.array_split(order, min(MOST_KNOTS, len(order))):
        blocks.append([float(distances[chunk].sum()), float(same[chunk].sum()), float(len(chunk))])
        while len(blocks) > 1 and blocks[-1][1] * blocks[-2][2] >= blocks[-2][1] * blocks[-1][2]:
            last = blocks.pop()
            blocks[-1] = [one + other for one, other in zip(blocks[-1], last, strict=True)]
    totals = np.array(blocks)
    probabilities = (totals[:, 1] + 1) / (totals[:, 2] + 2)
    return totals[:, 0] / totals[:, 2], np.minimum.accumulate(probabilities)


def reliability(predicted: Floats, same: NDArray[np.bool_], bins: int = RELIABILITY_BINS) -> list[list[float]]:
    """Compare predicted and observed shares.

    Args:
        predicted: P(same) of pairs (n,).
        same: Whether they are the same (n,).
        bins: Number of bins with equally many pairs.

    Returns:
        Rows (mean prediction, observed share, share of the pairs), ascending.
    """
    order = np.argsort(predicted, kind="stable")
    rows = []
    for chunk in np.array_split(order, bins):
        if len(chunk):
            rows.append([float(predicted[chunk].mean()), float(same[chunk].mean()), len(chunk) / len(order)])
    return rows


def calibration_error(predicted: Floats, same: NDArray[np.bool_], bins: int = RELIABILITY_BINS) -> float:
    """The expected calibration error: the mean difference of predicted and observed shares over the bins."""
    return sum(share * abs(mean - observed) for mean, observed, share in reliability(predicted, same, bins))


def open_set_metrics(neighbourhoods: Neighbourhoods) -> dict[str, float]:
    """Measure how well the nearest distance tells queries whose class is present from those whose class is absent.

    Every query whose class is present counts twice: once as it is, and once with its class taken out.

    Args:
        neighbourhoods: Queries with their neighbours.

    Returns:
        "AUROC"; "FPR@95", the share of absent queries that are accepted where 95 % of the present ones are; and
        "P@1@90", the share of right nearest neighbours among the 90 % of the queries with the nearest ones.
    """
    present = neighbourhoods.present & np.isfinite(neighbourhoods.nearest_other)
    known = neighbourhoods.distances[present, 0]
    absent = neighbourhoods.nearest_other[present]
    right = neighbourhoods.same[present, 0]
    below = np.searchsorted(np.sort(known), absent, side="left").sum()
    up_to = np.searchsorted(np.sort(known), absent, side="right").sum()
    covered = np.argsort(known, kind="stable")[: max(1, round(0.9 * len(known)))]
    return {
        "AUROC": float((below + up_to) / 2 / (len(known) * len(absent))),
        "FPR@95": float((absent <= np.quantile(known, 0.95)).mean()),
        "P@1@90": float(right[covered].mean()),
    }


def measure(calibration: Calibration, neighbourhoods: Neighbourhoods, error_rate: float = 0.05) -> dict[str, Any]:
    """Measure a calibration on other pictures.

    Args:
        calibration: Fitted on other classes.
        neighbourhoods: Queries with their neighbours.
        error_rate: Of the test for "nothing here looks the same".

    Returns:
        "calibration_error"; "nothing_said" and "nothing_said_rightly", how often the test says so where the class is
        present and where it is absent; and the rows of ``reliability``.
    """
    pictures = round(neighbourhoods.same_size + neighbourhoods.other_size) + 1
    exists = np.isfinite(neighbourhoods.distances)
    same = neighbourhoods.same[exists]
    adapted = calibration.adapted(pictures, neighbourhoods.same_size)
    predicted = adapted.probability(neighbourhoods.distances, neighbourhoods.references[:, None])[exists]
    present = neighbourhoods.present & np.isfinite(neighbourhoods.nearest_other)
    rejected = [calibration.p_value(s) <= error_rate for s in neighbourhoods.distances[present, 0]]
    rejected_absent = [calibration.p_value(s) <= error_rate for s in neighbourhoods.nearest_other[present]]
    return {
        "calibration_error": calibration_error(predicted, same),
        "nothing_said": float(np.mean(rejected)),
        "nothing_said_rightly": float(np.mean(rejected_absent)),
        "reliability": reliability(predicted, same),
    }
