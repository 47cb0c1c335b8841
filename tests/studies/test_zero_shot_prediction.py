import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from lookalike.app import main
from lookalike.studies import zero_shot_prediction_findings as findings

RIDGE = 0.05


def test_halves_are_all_equally_likely_and_of_half_the_classes() -> None:
    halves = findings.random_halves(4, 6000)
    assert (halves.sum(1) == 2).all()
    _, counts = np.unique(halves, axis=0, return_counts=True)
    assert len(counts) == 6
    assert counts == pytest.approx(1000, rel=0.15)


def test_an_odd_number_fits_on_the_smaller_half() -> None:
    assert (findings.random_halves(5, 20).sum(1) == 2).all()


@pytest.mark.parametrize("distance", findings.DISTANCES)
def test_accuracies_against_least_squares_in_a_loop(distance: str) -> None:
    chance = np.random.default_rng(3)
    histograms, means = chance.dirichlet(np.ones(3), 6), chance.normal(size=(6, 4))
    halves = findings.random_halves(6, 5)
    found = findings.accuracies(histograms, means, halves, RIDGE, distance)
    for half, accuracy in zip(halves, found, strict=True):
        # Ridge is least squares with rows of sqrt(ridge) that are to give 0.
        rows = np.vstack([histograms[half], RIDGE**0.5 * np.eye(3)])
        targets = np.vstack([means[half], np.zeros((3, 4))])
        fitted = np.linalg.lstsq(rows, targets, rcond=None)[0]
        right = 0
        others = np.flatnonzero(~half)
        for own in others:
            guess = histograms[own] @ fitted
            if distance == "L2":
                nearest = min(others, key=lambda c: np.linalg.norm(guess - means[c]))
            else:
                nearest = max(others, key=lambda c: guess @ means[c] / np.linalg.norm(means[c]))
            right += nearest == own
        assert accuracy == pytest.approx(right / len(others))
    assert 0 < found.mean() < 1  # else nothing was compared


def test_means_that_are_linear_in_histograms_are_all_predicted() -> None:
    chance = np.random.default_rng(0)
    histograms = chance.dirichlet(np.ones(3), 10)
    means = histograms @ chance.normal(size=(3, 8))
    halves = findings.random_halves(10, 30)
    for distance in findings.DISTANCES:
        assert findings.accuracies(histograms, means, halves, 1e-9, distance).min() == 1


def test_equal_histograms_say_nothing() -> None:
    means = np.random.default_rng(0).normal(size=(10, 8))
    same = np.full((10, 4), 0.25)
    assert findings.accuracies(same, means, findings.random_halves(10, 30), RIDGE, "L2") == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("l2", "cosine", "expected"),
    [
        ([35.0, 40.0], [31.0, 33.0], "reproduced"),
        ([35.0, 40.0], [20.0, 22.0], "partly"),
        ([80.0, -10.0], [80.0, -10.0], "not reproduced"),  # within two standard errors
        ([50.0], [50.0], "not tested"),  # one seed
        ([50.0, np.nan], [50.0, 50.0], "not tested"),
        ([8.0, 14.0], [8.0, 14.0], "not reproduced"),  # two standard errors, of two seeds
        ([6.0, 6.5], [-20.0, -21.0], "partly"),
        ([3.0, 4.0], [4.0, 4.5], "not reproduced"),
        ([-20.0, -21.0], [-1.0, 1.0], "not reproduced"),
        ([3.0, 4.0], [6.0, 6.5], "partly"),
    ],
)
def test_verdict(l2: list[float], cosine: list[float], expected: str) -> None:
    for names in permutations(findings.DISTANCES):
        assert findings.verdict(dict(zip(names, (l2, cosine), strict=True))) == expected


def test_miniature(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOKALIKE_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "out"
    assert main(["study", "zero-shot-prediction", "--miniature", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "not the authors' data" in said
    numbers = json.loads((out / "numbers.json").read_text())
    assert [run["run"] for run in numbers["runs"]] == [findings.PLAIN, findings.ZERO_SHOT]
    for run in numbers["runs"]:
        assert np.shape(run["histograms"]) == (10, 8)
        assert np.sum(run["histograms"], axis=1) == pytest.approx(1, abs=1e-5)
    assert numbers["runs"][0]["histograms"] != numbers["runs"][1]["histograms"]
    assert len(numbers["claims"]) == 2
    for name in ("histograms.png", "accuracy.png", "prototypes.svg", "zero-shot-prediction.csv", "index.html"):
        assert (out / name).stat().st_size > 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "zero_shot=1"], "zero_shot must lie in (0, 1), got 1"),
        (["--set", "seeds=[]"], "seeds must name at least one"),
        (["--set", "names=[a, b]"], "names must be of at least four classes"),
        (["--data", "somewhere"], "there is no folder, CSV or data set 'somewhere'"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert main(["study", "zero-shot-prediction", "--miniature", "--out", str(tmp_path / "out"), *words]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"lookalike study: {message}")
    assert list(tmp_path.iterdir()) == []
