"""P(same | distance) and the conformal test, on data whose true probabilities are known."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import roc_auc_score

from lookalike.retrieval.calibration import (
    FILE,
    RANK,
    Calibration,
    Neighbourhoods,
    _isotonic,
    calibration_error,
    check_confidence,
    find_neighbourhoods,
    fit,
    measure,
    open_set_metrics,
)


def clusters(classes: int, per_class: int, seed: int, spread: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(classes, 8))
    vectors = centres.repeat(per_class, 0) + spread * rng.normal(size=(classes * per_class, 8))
    return vectors.astype(np.float32), np.arange(classes).repeat(per_class)


@pytest.mark.parametrize("distance", ["cosine", "l2"])
def test_neighbourhoods_against_brute_force(distance: str) -> None:
    vectors, labels = clusters(5, 7, 0)
    found = find_neighbourhoods(vectors, labels, distance=distance, k=4)
    unit = vectors.astype(np.float64)
    if distance == "cosine":
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    for i in range(len(vectors)):
        if distance == "cosine":
            row = 1 - unit @ unit[i]
        else:
            row = np.linalg.norm(unit - unit[i], axis=1)
        others = [j for j in np.argsort(row, kind="stable") if j != i]
        np.testing.assert_allclose(found.distances[i], row[others[:4]], atol=1e-5)
        assert found.same[i].tolist() == [labels[j] == labels[i] for j in others[:4]]
        assert found.nearest_other[i] == pytest.approx(min(row[j] for j in others if labels[j] != labels[i]), abs=1e-5)
        assert found.references[i] == pytest.approx(max(row[j] for j in others), abs=1e-5)  # fewer than RANK
    assert (found.same_size, found.other_size) == (6, 28)
    assert found.present.all()


def test_the_fit_is_the_isotonic_regression() -> None:
    rng = np.random.default_rng(1)
    distances = rng.random(800)
    same = rng.random(800) > distances
    knots, probabilities = _isotonic(distances, same)
    expected = IsotonicRegression(increasing=False).fit(distances, same)
    blocks = expected.predict(knots)
    assert np.all(np.diff(probabilities) <= 0)
    sizes = np.array([np.isclose(expected.predict(distances), value).sum() for value in blocks])
    np.testing.assert_allclose(probabilities, np.minimum.accumulate((blocks * sizes + 1) / (sizes + 2)), atol=1e-9)


def test_probabilities_hold_on_classes_that_were_not_seen() -> None:
    calibration = fit(find_neighbourhoods(*clusters(60, 12, 2)), "drawn", unseen=True)
    result = measure(calibration, find_neighbourhoods(*clusters(60, 12, 3)))
    assert result["calibration_error"] < 0.06
    assert calibration.error < 0.1
    assert result["nothing_said"] < 0.09
    assert sum(row[2] for row in result["reliability"]) == pytest.approx(1)
    uncalibrated = calibration_error(np.full(100, 0.9), np.arange(100) % 2 == 0)
    assert uncalibrated == pytest.approx(0.4)


def test_a_larger_collection_lowers_the_odds() -> None:
    small = find_neighbourhoods(*clusters(15, 12, 4, 0.7))
    large = find_neighbourhoods(*clusters(150, 12, 5, 0.7))
    calibration = fit(small, "drawn", unseen=True)
    distances, same = large.distances.ravel(), large.same.ravel()
    references = large.references.repeat(10)
    plain = calibration_error(calibration.probability(distances, references), same)
    adapted = calibration_error(calibration.adapted(1800).probability(distances, references), same)
    assert adapted < plain / 2
    np.testing.assert_allclose(calibration.adapted(180).probabilities, calibration.probabilities)


def test_probabilities_hold_where_classes_are_harder_to_tell_apart() -> None:
    """The distance to the 50th neighbour tells how near strangers are; the distance alone is trusted too much."""
    easy, hard = find_neighbourhoods(*clusters(15, 12, 4, 0.5)), find_neighbourhoods(*clusters(150, 12, 5, 0.9))
    error = measure(fit(easy, "drawn", unseen=True), hard)["calibration_error"]

    def plain(found: Neighbourhoods) -> Neighbourhoods:
        return found._replace(references=np.ones(len(found.labels)))

    by_distance = replace(fit(plain(easy), "drawn", unseen=True), rank=0)
    assert error < 0.5 * measure(by_distance, hard)["calibration_error"]


def test_references_are_the_distances_of_the_fiftieth_neighbour() -> None:
    vectors, labels = clusters(12, 9, 3)
    found = find_neighbourhoods(vectors, labels, distance="l2", queries=np.arange(4))
    for i in range(4):
        row = np.sort(np.linalg.norm(vectors.astype(np.float64) - vectors[i], axis=1))
        assert found.references[i] == pytest.approx(row[RANK], abs=1e-5)  # row[0] is the picture itself


def test_a_calibration_of_earlier_versions_compares_distances_as_they_are(tmp_path: Path) -> None:
    content = fit(find_neighbourhoods(*clusters(6, 6, 8)), "drawn", unseen=True)
    old = asdict(replace(content, distances=[0.1, 0.5], probabilities=[0.9, 0.1], same_size=9.0, other_size=90.0))
    del old["rank"]
    old["format"] = 1
    (tmp_path / FILE).write_text(json.dumps(old))
    calibration = Calibration.read(tmp_path)
    assert calibration is not None
    assert calibration.probability([0.1, 0.3, 0.5]).tolist() == pytest.approx([0.9, 0.5, 0.1])
    assert calibration.adapted(190).probability(0.1) == pytest.approx(4.5 / 5.5)
    assert calibration.adapted(96, 5.0).probability(0.1) == pytest.approx(5 / 6)  # smaller classes, as many others
    assert calibration.adapted(91, 0.0).probability(0.1) == pytest.approx(0.1 / 1.1)


def test_the_test_says_nothing_wrongly_as_often_as_it_may() -> None:
    rng = np.random.default_rng(6)
    rates = []
    for _ in range(300):
        nearest = np.sort(rng.normal(size=99))
        calibration = Calibration([0.0], [0.5], nearest.tolist(), "", 99, 9, 1, 9, True, 0.0)
        rates.append(calibration.p_value(rng.normal()) <= 0.1)
    assert np.mean(rates) == pytest.approx(0.1, abs=0.05)
    assert calibration.p_value(np.inf) == 1 / 100
    assert calibration.p_value(-np.inf) == 1
    assert calibration.p_value(nearest[98]) == 2 / 100


def test_open_set_figures_against_scikit_learn() -> None:
    found = find_neighbourhoods(*clusters(20, 6, 7, 0.8))
    metrics = open_set_metrics(found)
    known, absent = found.distances[:, 0], found.nearest_other
    truth = np.r_[np.zeros(len(known)), np.ones(len(absent))]
    assert metrics["AUROC"] == pytest.approx(roc_auc_score(truth, np.r_[known, absent]))
    assert metrics["FPR@95"] == np.mean(absent <= np.quantile(known, 0.95))
    nearest = np.argsort(known)[:108]
    assert metrics["P@1@90"] == pytest.approx(found.same[nearest, 0].mean())


def test_the_file(tmp_path: Path) -> None:
    assert Calibration.read(tmp_path) is None
    calibration = fit(find_neighbourhoods(*clusters(6, 6, 8)), "drawn", unseen=True)
    calibration.write(tmp_path)
    assert Calibration.read(tmp_path) == calibration
    content = json.loads((tmp_path / FILE).read_text())
    for damage in (
        {"format": 3},
        {"rank": -1},
        {"rank": "50"},
        {"distances": ["x"]},
        {"distances": [1.0, 0.0], "probabilities": [0.5, 0.5]},
        {"distances": [0.0], "probabilities": [1.5]},
        {"more": 1},
    ):
        (tmp_path / FILE).write_text(json.dumps({**content, **damage}))
        with pytest.raises(ValueError, match="is damaged"):
            Calibration.read(tmp_path)


def test_too_few_labels_and_wrong_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 20 labelled pictures of 2 classes, got 10 of 1"):
        fit(find_neighbourhoods(*clusters(1, 10, 0)), "", unseen=True)
    with pytest.raises(ValueError, match="every picture has a class of its own"):
        fit(find_neighbourhoods(*clusters(30, 1, 0)), "", unseen=True)
    for value in (0.0, 1.0, -1.0, 2.0, float("nan")):
        with pytest.raises(ValueError, match="confidence must be between 0 and 1"):
            check_confidence("confidence", value)


def test_missing_neighbours_are_no_pairs() -> None:
    found = find_neighbourhoods(*clusters(4, 6, 1))
    distances = found.distances.copy()
    distances[:, 5:] = np.inf
    fitted = fit(Neighbourhoods(distances, *found[1:]), "", unseen=True)
    assert np.isfinite(fitted.distances).all()
