"""Labels are judged by an exact leave-one-out classifier."""

import numpy as np
import pytest
from numpy.typing import NDArray

from lookalike.doctor import labels as module
from lookalike.doctor.labels import judge_labels


def clusters(
    classes: int = 5, each: int = 20, dim: int = 8, noise: float = 0.4
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(classes, dim))
    labels = np.repeat(np.arange(classes), each)
    return centres[labels] + noise * rng.normal(size=(classes * each, dim)), labels


@pytest.mark.parametrize("ridge", [1e-3, 0.1, 10.0])
@pytest.mark.parametrize(("classes", "dim"), [(3, 4), (5, 40)])
def test_leave_one_out_equals_fitting_without_each_picture(ridge: float, classes: int, dim: int) -> None:
    vectors, labels = clusters(classes, each=7, dim=dim)
    centred = vectors - vectors.mean(axis=0)
    values, directions = np.linalg.eigh(centred.T @ centred)
    used = values > 1e-9
    values, directions = values[used], directions[:, used]
    model = module._LeaveOneOut(centred @ (directions / np.sqrt(values)), labels, values / (values + ridge), classes)
    fast = model.scores(slice(0, len(labels)))
    for i in range(len(labels)):
        rest = np.delete(np.arange(len(labels)), i)
        # ridge regression with an intercept that is not penalised
        design = np.hstack([vectors[rest], np.ones((len(rest), 1))])
        penalty = ridge * np.eye(dim + 1)
        penalty[-1, -1] = 0
        weights = np.linalg.solve(design.T @ design + penalty, design.T @ np.eye(classes)[labels[rest]])
        np.testing.assert_allclose(fast[i], np.append(vectors[i], 1) @ weights, atol=1e-8)


def test_flipped_labels_are_found_and_named() -> None:
    vectors, labels = clusters(noise=0.2)
    given = labels.copy()
    flipped = [3, 25, 47, 99]
    given[flipped] = (given[flipped] + 2) % 5
    opinion = judge_labels(vectors, given, 5)
    assert np.flatnonzero(opinion.wrong > 0.5).tolist() == flipped
    assert opinion.likely[flipped].tolist() == labels[flipped].tolist()
    assert opinion.rate == pytest.approx(0.04, abs=0.02)
    assert (opinion.predicted == labels).mean() > 0.95


def test_the_probability_is_that_of_bayes_rule() -> None:
    own = np.array([0.0, 0.02, 0.5, 1.0])
    wrong, likelihood = module._posterior(own, 0.1, 11)
    np.testing.assert_allclose(likelihood, 0.9 * own + 0.01 * (1 - own))
    np.testing.assert_allclose(wrong, 0.01 * (1 - own) / likelihood)
    assert wrong[0] == 1
    assert wrong[3] == 0


def test_without_wrong_labels_none_is_doubted() -> None:
    vectors, labels = clusters(noise=0.2)
    opinion = judge_labels(vectors, labels, 5)
    assert opinion.rate < 0.01
    assert (opinion.wrong < 0.3).all()


def test_the_chunks_of_rows_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, labels = clusters(noise=1.0)
    whole = judge_labels(vectors, labels, 5)
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 7)
    for a, b in zip(whole, judge_labels(vectors, labels, 5), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


def test_a_class_of_one_picture_is_left_alone() -> None:
    vectors, labels = clusters()
    alone = np.append(labels, 5)
    opinion = judge_labels(np.vstack([vectors, vectors[:1]]), alone, 6)
    assert opinion.wrong[-1] == 0


def test_constant_vectors_say_nothing() -> None:
    labels = np.repeat([0, 1], 5)
    opinion = judge_labels(np.ones((10, 3)), labels, 2)
    assert (opinion.wrong < 0.3).all()
