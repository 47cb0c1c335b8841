import json
from pathlib import Path

import numpy as np
import pytest
from lookalike_studies.toy import weights as toy
from lookalike_studies.toy.claims import judge

from lookalike.cli import main

Case = tuple[toy.Array, toy.Mask, toy.Array]
Numbers = tuple[float, int, int, float, float]
LADDER = (0.5, 5.0, 50.0, 500.0)


@pytest.fixture(scope="module", params=range(4))
def case(request: pytest.FixtureRequest) -> Case:
    features, is_object = toy.toy_map(request.param)
    return features, is_object, toy.toy_cost(features)


def test_half_of_the_map_is_object(case: Case) -> None:
    features, is_object, cost = case
    assert features.shape == (10, 10, 3)
    assert features.min() >= 0
    assert features.max() <= 1
    assert is_object.sum() == 50
    assert cost.shape == (2, 100)
    reddish, bluish = features[:5, :5].reshape(-1, 3), features[5:, 5:].reshape(-1, 3)
    assert (reddish.argmax(-1) == 0).all()
    assert (bluish.argmax(-1) == 2).all()
    assert (features[~is_object].argmax(-1) == 1).all()


def test_the_map_is_seeded() -> None:
    assert np.array_equal(toy.toy_map(3)[0], toy.toy_map(3)[0])
    assert not np.array_equal(toy.toy_map(3)[0], toy.toy_map(4)[0])


def test_cost_is_the_clipped_distance_by_hand() -> None:
    red, long_green = [1.0, 0.0, 0.0], [0.0, 3.0, 0.0]
    cost = toy.toy_cost(np.array([red, long_green, [0.0, 0.0, 0.5]]))
    assert cost == pytest.approx(np.array([[0, 2**0.5, 1.25**0.5], [2**0.5, 2**0.5, 0.5]]))


def test_every_weight_is_a_distribution(case: Case) -> None:
    _, _, cost = case
    for weights in toy.toy_weights(cost, 0.2, LADDER).values():
        assert weights.sum() == pytest.approx(1)
        assert weights.min() >= 0
        assert weights.max() <= 0.05 + 1e-9  # 1 / (n keep)


def test_linear_programme_takes_the_nearest_twenty_and_drops_thirty(case: Case) -> None:
    _, is_object, cost = case
    weights = toy.toy_weights(cost, 0.2, ())[toy.PROGRAMME]
    assert toy.measure_spread(weights, is_object).dropped == 30
    assert set(weights.argsort()[-20:]) == set(cost.min(0).argsort()[:20])


def test_linear_programme_drops_nothing_at_the_true_share(case: Case) -> None:
    _, is_object, cost = case
    measured = toy.measure_spread(toy.toy_weights(cost, 0.5, ())[toy.PROGRAMME], is_object)
    assert (measured.dropped, measured.starved) == (0, 0)
    assert measured.on_object == pytest.approx(1)


def test_smoothed_reaches_every_object_pixel(case: Case) -> None:
    _, is_object, cost = case
    measured = toy.measure_spread(toy.smoothed_weights(cost, 0.2, 5.0), is_object)
    assert measured.dropped == 0
    assert measured.least > 0.4
    assert measured.on_object > 0.98


def test_sharpness_leads_monotonically_from_average_to_the_linear_programme(case: Case) -> None:
    _, is_object, cost = case
    values = np.logspace(-3, 4, 15)
    smooth = [toy.smoothed_weights(cost, 0.2, value) for value in values]
    on_object = [toy.measure_spread(weights, is_object).on_object for weights in smooth]
    effective = [1 / np.square(weights).sum() for weights in smooth]  # how many pixels take part
    assert (np.diff(on_object) > -1e-12).all()
    assert (np.diff(effective) < 1e-9).all()
    assert smooth[0] == pytest.approx(np.full(100, 0.01), rel=2e-3)
    # The limit is reached as far as the pixels at the threshold are told apart.
    assert np.abs(smooth[-1] - toy.toy_weights(cost, 0.2, ())[toy.PROGRAMME]).sum() < 0.1


def test_keep_one_is_average_pooling(case: Case) -> None:
    _, _, cost = case
    for weights in toy.toy_weights(cost, 1.0, (5.0,)).values():
        assert weights == pytest.approx(np.full(100, 0.01), rel=1e-9)


def test_spread_counts_by_hand() -> None:
    weights = np.array([0.5, 0.2, 0.1, 0.0, 0.2])  # a fair share of the first four is 1/4
    measured = toy.measure_spread(weights, np.array([True, True, True, True, False]))
    assert measured == pytest.approx((0.8, 1, 2, 0.0, 2.0))


def test_more_noise_starves_more() -> None:
    counts = list(toy.starved_by_noise(0.2, 5.0, 0.07, maps=10).values())
    assert counts == sorted(counts)
    assert counts[0] == 0
    assert counts[-1] > 1


@pytest.mark.parametrize(
    ("programme", "smooth", "agrees", "word"),
    [
        ((1.0, 30, 30, 0.0, 2.5), (0.99, 0, 0, 0.6, 1.2), "reproduced", "does not"),
        ((1.0, 0, 0, 1.0, 1.0), (0.99, 0, 0, 0.6, 1.2), "not tested", "keep less"),
        ((1.0, 30, 30, 0.0, 2.5), (1.0, 0, 7, 0.1, 2.0), "partly", "starves 7"),
        ((1.0, 30, 30, 0.0, 2.5), (1.0, 3, 7, 0.0, 2.0), "not reproduced", "drops 3"),
        ((1.0, 30, 30, 0.0, 2.5), (0.6, 0, 0, 0.5, 0.6), "not reproduced", "40%"),
    ],
)
def test_verdict(programme: Numbers, smooth: Numbers, agrees: str, word: str) -> None:
    said, why = judge(toy.Spread(*programme), toy.Spread(*smooth))
    assert said == agrees
    assert word in why


def test_as_it_is_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "new" / "folder"
    assert main(["study", "toy", "--out", str(out)]) == 0
    names = ["index.html", "numbers.json", "spread.csv", "toy.json", "toy.png", "toy.svg"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert (out / "toy.png").read_bytes().startswith(b"\x89PNG")
    assert b"</svg>" in (out / "toy.svg").read_bytes()
    numbers = json.loads((out / "numbers.json").read_text())
    assert numbers["claims"][0]["verdict"] == "reproduced"
    assert numbers["weights"]["linear programme"]["dropped"] == 30
    assert numbers["weights"]["average pooling"]["on_object"] == pytest.approx(0.5)
    smooth = numbers["weights"]["smoothed, sharpness 5"]
    said = capsys.readouterr()
    assert "uses 20 of its pixels" in said.out
    assert said.out.count("linear programme  ") == 1  # of the table
    assert f"{smooth['least']:.2f} to {smooth['most']:.2f} fair shares" in said.out
    assert str(out / "index.html") in said.out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("keep=0", "keep must be in (0, 1], got 0.0"),
        ("keep=1.3", "keep must be in (0, 1], got 1.3"),
        ("keep=some", "keep must be a number, got 'some'"),
        ("keep=1e-9", "keep is below"),
        ("sharpness=-1", "sharpness must be in"),
        ("size=3", "the study toy has no setting 'size'"),
        ("sharpnes=3", "the study toy has no setting 'sharpnes' (did you mean 'sharpness'?)"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: str, message: str
) -> None:
    assert main(["study", "toy", "--out", str(tmp_path / "out"), "--set", changes]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"lookalike study: {message}")
    assert said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
