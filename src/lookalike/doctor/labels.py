"""Which labels are doubtful? Every picture is classified by a linear model that has not seen it.

Ridge regression of one-hot labels on the vectors has an exact leave-one-out form: with the hat matrix H, the prediction
for picture i without picture i is (f_i - h_ii y_i) / (1 - h_ii). A softmax makes it a probability p(c | x_i).

A label is taken to be wrong with probability e, and then to be any other class:
p(label y | x) = (1 - e) p(y | x) + e / (C - 1) (1 - p(y | x)). Ridge, temperature and e are those of the largest
leave-one-out likelihood, and Bayes' rule gives the probability that a label is wrong.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RIDGES = tuple(10.0**power for power in range(-4, 2))  # times the mean eigenvalue
TEMPERATURES = (0.0, *(2.0 ** (power / 2) for power in range(15)))  # 0: the vectors say nothing about the classes
FIRST_RATE, LEAST_RATE, MOST_RATE = 0.05, 1e-6, 0.4  # of wrong labels
ROUNDS = 30  # of EM
ROWS_AT_ONCE = 4096


class LabelOpinion(NamedTuple):
    """What the other pictures say about each label.

    Attributes:
        wrong: Probability that the label is wrong, (n,); 0 for a picture that is alone in its class.
        likely: The most probable other class, (n,).
        predicted: The most probable class, (n,).
        rate: Estimated share of wrong labels.
    """

    wrong: NDArray[np.float64]
    likely: NDArray[np.int64]
    predicted: NDArray[np.int64]
    rate: float


def judge_labels(vectors: NDArray[np.floating], labels: NDArray[np.integer], classes: int) -> LabelOpinion:
    """Classify every picture by all others and compare with its label.

    Args:
        vectors: (n, D).
        labels: (n,), 0 to ``classes`` - 1.
        classes: Number of classes, at least 2.
    """
    model = _fit(np.asarray(vectors, np.float64), np.asarray(labels), classes)
    wrong = np.empty(len(labels))
    likely, predicted = np.empty(len(labels), np.int64), np.empty(len(labels), np.int64)
    for rows in _chunks(len(labels)):
        probabilities = model.probabilities(rows)
        positions = np.arange(len(probabilities))
        predicted[rows] = probabilities.argmax(axis=1)
        own = probabilities[positions, labels[rows]]
        wrong[rows] = _posterior(own, model.rate, classes)[0]
        probabilities[positions, labels[rows]] = -1
        likely[rows] = probabilities.argmax(axis=1)
    wrong[np.bincount(labels, minlength=classes)[labels] < 2] = 0
    return LabelOpinion(wrong, likely, predicted, model.rate)


def _posterior(own: NDArray[np.float64], rate: float, classes: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The probability that a label is wrong, and the likelihood of the label."""
    if_wrong = rate / (classes - 1) * (1 - own)
    likelihood = np.maximum(if_wrong + (1 - rate) * own, 1e-300)
    return if_wrong / likelihood, likelihood


class _LeaveOneOut:
    """Leave-one-out predictions of ridge regression, as probabilities."""

    def __init__(
        self, projected: NDArray[np.float64], labels: NDArray[np.integer], shrinkage: NDArray[np.float64], classes: int
    ) -> None:
        # H = 1/n + P diag(shrinkage) P^T, where P has orthonormal columns
        self._projected, self._labels, self._classes = projected, labels, classes
        count = len(projected)
        sums = np.zeros((classes, projected.shape[1]))
        np.add.at(sums, labels, projected)
        self._coefficients = shrinkage[:, None] * sums.T
        self._shares = np.bincount(labels, minlength=classes) / count
        self._leverage = np.minimum(1 / count + (projected**2) @ shrinkage, 1 - 1e-9)
        self.temperature, self.rate, self.likelihood = 1.0, FIRST_RATE, -np.inf

    def scores(self, rows: slice) -> NDArray[np.float64]:
        """Leave-one-out scores, (rows, classes)."""
        fitted = self._projected[rows] @ self._coefficients + self._shares
        leverage = self._leverage[rows]
        positions = np.arange(len(fitted))
        fitted[positions, self._labels[rows]] -= leverage
        scores: NDArray[np.float64] = fitted / (1 - leverage)[:, None]
        return scores

    def probabilities(self, rows: slice) -> NDArray[np.float64]:
        """Softmax of the scores."""
        return _softmax(self.temperature * self.scores(rows))

    def choose_temperature(self) -> None:
        """Set temperature and rate of wrong labels to those of the largest mean log-likelihood."""
        own = np.empty((len(TEMPERATURES), len(self._labels)))
        for rows in _chunks(len(self._labels)):
            scores = self.scores(rows)
            positions = np.arange(len(scores))
            for number, temperature in enumerate(TEMPERATURES):
                own[number, rows] = _softmax(temperature * scores)[positions, self._labels[rows]]
        for number, temperature in enumerate(TEMPERATURES):
            rate = FIRST_RATE
            for _ in range(ROUNDS):
                wrong, likelihood = _posterior(own[number], rate, self._classes)
                rate = min(max(float(wrong.mean()), LEAST_RATE), MOST_RATE)
            mean_log = float(np.log(likelihood).mean())
            if mean_log > self.likelihood:
                self.temperature, self.rate, self.likelihood = temperature, rate, mean_log


def _fit(vectors: NDArray[np.float64], labels: NDArray[np.integer], classes: int) -> _LeaveOneOut:
    centred = vectors - vectors.mean(axis=0)
    values, directions = np.linalg.eigh(centred.T @ centred)
    used = values > max(values.max() * 1e-12, 1e-300)
    used[-1] = True  # the largest; constant vectors still say how frequent each class is
    values = np.maximum(values[used], 1e-300)
    projected = centred @ (directions[:, used] / np.sqrt(values))
    models = []
    for ridge in RIDGES:
        model = _LeaveOneOut(projected, labels, values / (values + ridge * values.mean()), classes)
        model.choose_temperature()
        models.append(model)
    return max(models, key=lambda model: model.likelihood)


def _softmax(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares: NDArray[np.float64] = exponentials / exponentials.sum(axis=1, keepdims=True)
    return shares


def _chunks(count: int) -> list[slice]:
    return [slice(first, min(first + ROWS_AT_ONCE, count)) for first in range(0, count, ROWS_AT_ONCE)]
