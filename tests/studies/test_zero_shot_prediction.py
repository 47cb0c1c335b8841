import json
import signal
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch
from lookalike_studies.framework.train_pictures import create_embedder
from lookalike_studies.zero_shot_prediction import prediction
from lookalike_studies.zero_shot_prediction.claims import BEFORE, PERMUTED, PLAIN, ZERO_SHOT, judge_claim, judge_gains
from lookalike_studies.zero_shot_prediction.prediction import DISTANCES, Accuracy, Ridge, Run
from lookalike_studies.zero_shot_prediction.study import STUDY
from numpy.typing import NDArray

from lookalike.cli import main
from lookalike.models import create_backbone
from lookalike.training import pretrain

RIDGE, RELATIVE = Ridge(0.05), Ridge(0.01, is_relative=True)


def test_halves_are_all_equally_likely_and_of_half_the_classes() -> None:
    halves = prediction.random_halves(4, 6000)
    assert (halves.sum(1) == 2).all()
    _, counts = np.unique(halves, axis=0, return_counts=True)
    assert len(counts) == 6
    assert counts == pytest.approx(1000, rel=0.15)


def test_an_odd_number_fits_on_the_smaller_half() -> None:
    assert (prediction.random_halves(5, 20).sum(1) == 2).all()


@pytest.mark.parametrize("ridge", [RIDGE, Ridge(0.4, is_relative=True)])
@pytest.mark.parametrize("distance", DISTANCES)
def test_accuracies_against_least_squares_in_a_loop(distance: str, ridge: Ridge) -> None:
    chance = np.random.default_rng(3)
    histograms, means = chance.dirichlet(np.ones(3), 6), chance.normal(size=(6, 4))
    halves = prediction.random_halves(6, 5)
    found = prediction.accuracies(histograms, means, halves, ridge)[distance]
    for half, accuracy in zip(halves, found, strict=True):
        # Ridge is least squares with rows of sqrt(ridge) that are to give 0.
        size = ridge.size
        if ridge.is_relative:  # mean squared distance to the mean = half the mean over all ordered pairs, n * n of them
            fitted_on = histograms[half]
            size = ridge.size * np.mean([np.sum((a - b) ** 2) / 2 for a in fitted_on for b in fitted_on])
        rows = np.vstack([histograms[half], size**0.5 * np.eye(3)])
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
    halves = prediction.random_halves(10, 30)
    for found in prediction.accuracies(histograms, means, halves, Ridge(1e-9)).values():
        assert found.min() == 1


def test_equal_histograms_say_nothing() -> None:
    means = np.random.default_rng(0).normal(size=(10, 8))
    same = np.full((10, 4), 0.25)
    for ridge in (RIDGE, RELATIVE):  # the spread is 0
        for found in prediction.accuracies(same, means, prediction.random_halves(10, 30), ridge).values():
            assert found == pytest.approx(0.2)


def telling() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Histograms of ten classes over eight prototypes, and means that they tell much about."""
    chance = np.random.default_rng(0)
    histograms = chance.dirichlet(np.ones(8), 10)
    return histograms, histograms @ chance.normal(size=(8, 64)) + 0.3 * chance.normal(size=(10, 64))


def test_flatter_histograms_that_say_the_same_are_worth_the_same() -> None:
    """As any fixed ridge would not have it."""
    histograms, means = telling()
    halves = prediction.random_halves(10, 200)
    flat = [1 / 8 + scale * (histograms - 1 / 8) for scale in (0.1, 0.01, 1e-3, 1e-4)]
    for distance in DISTANCES:
        relative = [prediction.accuracies(each, means, halves, RELATIVE)[distance].mean() for each in flat]
        assert relative == pytest.approx([relative[-1]] * 4, abs=0.01)
        assert relative[-1] > 0.5
        fixed = [prediction.accuracies(each, means, halves, Ridge(1e-6))[distance].mean() for each in flat]
        assert fixed[0] - fixed[-1] > 0.3


def test_a_fit_that_fails_is_no_figure() -> None:
    same, means = np.full((10, 4), 0.25), np.ones((10, 8))
    found = prediction.accuracies(same, means, prediction.random_halves(10, 3), Ridge(1e-20))
    assert all(np.isnan(each).all() for each in found.values())


def test_permuted_histograms_are_chance() -> None:
    histograms, means = telling()
    run = Run(histograms, means, 0.0, 0.0, np.zeros((1, 1), dtype=np.float32), np.zeros((1, 1), dtype=np.int64))
    for predicted in prediction.measure_accuracy([run, run], 1000, RELATIVE).values():
        assert len(predicted.right) == len(predicted.permuted) == 2
        assert predicted.right[0] > 50
        assert predicted.permuted[0] == pytest.approx(20, abs=3)


def test_an_order_is_whose_histogram_a_class_is_given() -> None:
    histograms, means = telling()
    halves, orders = prediction.random_halves(10, 4), prediction.random_orders(10, 4, seed=3)
    found = prediction.accuracies(histograms, means, halves, RELATIVE, orders)
    for i in range(4):
        alone = prediction.accuracies(histograms[orders[i]], means, halves[i : i + 1], RELATIVE)
        assert all(found[distance][i] == alone[distance] for distance in DISTANCES)


def test_all_seeds_start_from_one_network() -> None:
    """Else what is measured before training would be that of one seed."""
    weights = create_backbone("resnet20", weights="none").network.state_dict()
    pixels = np.random.default_rng(0).integers(256, size=(12, 32, 32, 3), dtype=np.uint8)
    begun = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        begun.append(
            create_embedder(STUDY.load_settings("miniature").recipe(0.1 * seed, seed, 10), weights, pixels).state_dict()
        )
    assert all(torch.equal(value, begun[1][name]) for name, value in begun[0].items())


@pytest.mark.parametrize(
    ("l2", "cosine", "expected"),
    [
        ([35.0, 40.0], [31.0, 33.0], "reproduced"),
        ([35.0, 40.0], [20.0, 22.0], "partly"),
        ([80.0, -10.0], [80.0, -10.0], "not tested"),  # anything may be there
        ([80.0, -10.0], [-1.0, 0.0], "not tested"),
        ([80.0, -10.0], [35.0, 40.0], "not tested"),  # reproduced or partly
        ([80.0, -10.0], [6.0, 6.5], "partly"),  # whatever the first may be
        ([29.0, 28.0], [29.0, 28.0], "not tested"),  # 30 may be there
        ([28.0, 28.1], [28.0, 28.1], "partly"),  # and here it cannot
        ([50.0], [50.0], "not tested"),  # one seed
        ([50.0, np.nan], [50.0, 50.0], "not tested"),
        ([8.0, 14.0], [8.0, 14.0], "not tested"),  # two standard errors, of two seeds
        ([6.0, 6.5], [-20.0, -21.0], "partly"),
        ([3.0, 4.0], [4.0, 4.5], "not tested"),  # 5 may be there
        ([3.0, 3.1], [4.0, 4.1], "not reproduced"),  # sure, and too little
        ([0.0, 0.0], [0.0, 0.0], "not reproduced"),
        ([-20.0, -21.0], [-1.0, 0.0], "not reproduced"),
        ([-20.0, -21.0], [-1.0, 1.0], "not tested"),
        ([3.0, 4.0], [6.0, 6.5], "partly"),
    ],
)
def test_verdict(l2: list[float], cosine: list[float], expected: str) -> None:
    for names in permutations(DISTANCES):
        assert judge_gains(dict(zip(names, (l2, cosine), strict=True))).verdict == expected


@pytest.mark.parametrize(("true", "wrong"), [(30.0, {"partly", "not reproduced"}), (5.0, {"not reproduced"})])
def test_what_is_there_is_seldom_denied(true: float, wrong: set[str]) -> None:
    chance = np.random.default_rng(0)
    for seeds in (2, 5):
        draws = true + 4 * chance.standard_normal((1000, seeds))  # both distances alike, as they nearly are
        denied = [judge_gains(dict.fromkeys(DISTANCES, each.tolist())).verdict in wrong for each in draws]
        assert sum(denied) <= 0.07 * 1000


def test_the_claim_tells_the_controls_and_what_may_be_there() -> None:
    def of(*right: float) -> dict[str, Accuracy]:
        return {distance: Accuracy(list(right), [21.0] * len(right)) for distance in DISTANCES}

    said = judge_claim({BEFORE: of(55.0), PLAIN: of(50.0, 51.0), ZERO_SHOT: of(79.0, 79.0)}, RELATIVE, 20, None)
    assert said.verdict == "not tested"
    assert said.here.startswith("fit with relative ridge 0.01: L2: 79.0 ± 0.0 % with, 50.5 ± 0.7 % without, +28.5")
    assert "55.0 % before training" in said.here
    assert "by chance 20 %, with histograms permuted 21.0 %; 2 seeds" in said.here
    assert said.here.endswith("; 30 points may be there")
    noisy = judge_claim({BEFORE: of(55.0), PLAIN: of(50.0, 51.0), ZERO_SHOT: of(40.0, 79.0)}, RIDGE, 20, None)
    assert noisy.verdict == "not tested"
    assert "too coarse for L2, where 5 may be there" in noisy.here


def test_miniature(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOKALIKE_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "out"
    assert main(["study", "zero-shot-prediction", "--miniature", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "not the authors' data" in said
    numbers = json.loads((out / "numbers.json").read_text())
    assert [(run["run"], run["seed"]) for run in numbers["runs"]] == [(BEFORE, None), (PLAIN, 0), (ZERO_SHOT, 0)]
    for run in numbers["runs"]:
        for key in ("accuracy", PERMUTED):
            assert list(run[key]) == [f"{d}, {r}" for r in ("ridge 0.05", "relative ridge 0.01") for d in DISTANCES]
            assert all(0 <= share <= 1 for share in run[key].values())
        assert np.shape(run["histograms"]) == (10, 8)
        assert np.sum(run["histograms"], axis=1) == pytest.approx(1, abs=1e-5)
    before, plain, zero_shot = (run["histograms"] for run in numbers["runs"])
    assert before != plain != zero_shot != before
    rows = (out / "zero-shot-prediction.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows[1:]] == [PLAIN, ZERO_SHOT, BEFORE, PERMUTED]
    assert "It is the same for all seeds" in said
    assert len(numbers["claims"]) == 2
    for name in ("histograms.png", "accuracy.png", "prototypes.svg", "zero-shot-prediction.csv", "index.html"):
        assert (out / name).stat().st_size > 0


def test_pretraining_ends_when_asked_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOKALIKE_CACHE", str(tmp_path / "cache"))
    steps = []

    def press(pixels: NDArray[np.uint8], _: np.random.Generator) -> NDArray[np.uint8]:
        steps.append(1)
        if len(steps) == 2:
            signal.raise_signal(signal.SIGINT)
        return pixels

    monkeypatch.setattr(pretrain, "shifted", press)
    command = ["study", "zero-shot-prediction", "--miniature", "--out", str(tmp_path / "out")]
    assert main([*command, "--set", "pretraining_steps=9"]) == 128 + signal.SIGINT
    assert len(steps) == 2
    assert [path for path in tmp_path.rglob("*") if path.is_file() and "pretraining" in path.parts] == []
    assert list((tmp_path / "out").rglob("*")) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "zero_shot=1"], "zero_shot must be in (0, 1), got 1.0"),
        (["--set", "seeds=[]"], "seeds must name at least one"),
        (["--set", "relative_ridge=0"], "relative_ridge must be finite and above 0, got 0"),
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
