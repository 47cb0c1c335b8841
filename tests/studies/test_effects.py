import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lookalike_studies.effects import claims as claims
from lookalike_studies.effects import iterated as effects_iterated
from lookalike_studies.effects import runs as effects_runs
from lookalike_studies.effects import study as effects
from lookalike_studies.effects.axis import Point, axes, load_axis, rows_of
from lookalike_studies.effects.measured import Measured

from lookalike import pooling as poolings
from lookalike.cli import main
from lookalike.experiments.plan import parse_methods
from lookalike.experiments.protocol import load_protocol
from lookalike.pooling.gsp import GeneralizedSumPool

AXES = {
    *("keep", "sharpness-prototypes", "prototypes", "iterations", "embedding-size", "lambda-proxies", "pool-proxies"),
    *("alternating", "batch-size", "zero-shot", "factorial", "poolings"),
}
KEEP, M, SHARPNESS = (f"pooling_settings.{name}" for name in ("keep", "num_prototypes", "sharpness"))


def measured(axis: str, levels: Callable[[Point], float], noise: float = 0.05, blocks: int = 3) -> Measured:
    """Figures that a formula gives, with luck of the seed and a little noise."""
    own = load_axis(axis)
    points = own.points("all")
    chance = np.random.default_rng(1)
    rest = noise * chance.standard_normal((len(points), blocks))
    rest -= rest.mean(1, keepdims=True)  # the means are what the formula says
    luck = 5 * chance.standard_normal(blocks)
    return Measured(own, points, np.array([[levels(point)] for point in points]) + rest + luck)


def verdicts(axis: str, levels: Callable[[Point], float], **more: Any) -> list[str]:
    return [claim.verdict for claim in claims.judge_axis(measured(axis, levels, **more))]


def test_every_axis_has_claims_and_possible_points() -> None:
    assert set(axes()) == AXES
    for name in axes():
        axis = load_axis(name)
        assert axis.claims
        load_protocol(axis.protocol)
        for series in axis.series:
            parse_methods(series.methods)
            assert series.pooling in (*poolings.names(), effects_iterated.NAME)
            every = [str(point) for point in series.points("all")]
            assert len(set(every)) == len(every)
            assert set(map(str, series.points("some"))) <= set(every)
            assert set(map(str, series.points("ends"))) <= set(every)


def test_points_are_the_grid_and_the_plans_of_tuning() -> None:
    grid = load_axis("sharpness-prototypes").points("all")
    assert len(grid) == 2 * 4 * 6
    assert grid[0].fixed == {"pooling_settings.keep": 0.3}
    assert len(load_axis("factorial").points("some")) == 2 * 8  # a screen is whole or nothing
    pool = load_axis("pool-proxies").points("all")
    assert all(point.values["ccp_pool"] >= point.values["ccp_proxies"] for point in pool)
    assert {point.values["ccp_pool"] for point in pool if point.values["ccp_proxies"] == 8} == {8, 12, 16}


def test_rows_carry_the_settings_of_their_points() -> None:
    from lookalike.experiments.plan import load_sources

    sources = load_sources(["glyphs(cells=1, size=32, train_classes=12, test_classes=4, per_class=4)"])
    protocol = load_protocol("quick")
    of_pooling = {"gsp": {"num_prototypes": 7, "sharpness": 20.0, "keep": 0.25}}
    axis = load_axis("zero-shot")
    rows = rows_of(axis, axis.points("all"), protocol, sources, {"steps": 3}, of_pooling)
    found = {axis.series[number].name: cells[0].settings for number, cells in rows.cells.items()}
    assert {settings.steps for settings in found.values()} == {3}
    assert found["C2"].pooling == "average"
    assert found["C2 + GSP"].pooling_settings["num_prototypes"] == 7
    assert found["C2 + GSP"].zero_shot == 0
    kept = found["C2 + zero-shot"]  # average pooling with attributes
    assert (kept.pooling, kept.pooling_settings["keep"], kept.pooling_settings["num_prototypes"]) == ("gsp", 1.0, 7)
    assert kept.zero_shot == pytest.approx(0.1)
    axis = load_axis("iterations")
    rows = rows_of(axis, axis.points("ends"), load_protocol("tuning"), sources, {}, of_pooling)
    rounds, exact = (rows.cells[number][0].settings for number in (0, 4))
    assert rounds.pooling == "gsp-iterated"
    assert rounds.pooling_settings == {**exact.pooling_settings, "iterations": 1, "gradient": "closed-form"}
    assert exact.pooling_settings["init"] == "k-centre-released"
    axis = load_axis("keep")
    rows = rows_of(axis, axis.points("all"), protocol, sources, {}, of_pooling)
    keeps = [cells[0].settings.pooling_settings.get("keep") for cells in rows.cells.values()]
    assert keeps == [*(i / 10 for i in range(1, 11)), None]


def test_rest_is_what_neither_point_nor_seed_explains() -> None:
    axis, points = load_axis("batch-size"), load_axis("batch-size").points("all")[:2]
    m = Measured(axis, points, np.array([[1.0, 2.0, 6.0], [2.0, 4.0, 6.0]]))
    # differences 1, 2, 0: their variance is 1, which is 2 rest^2
    assert m.rest == pytest.approx(0.5**0.5)
    assert m.margin == pytest.approx(2.92 * (1 / 3) ** 0.5, rel=1e-3)  # Student's t of two, times the standard error
    assert m.margin_of(4) == pytest.approx(m.margin / 2)
    assert Measured(axis, points, m.metrics / 1000).margin_of(4) == pytest.approx(0.1)  # the least is no less
    additive = Measured(axis, points, np.array([[1.0, 2.0, 6.0], [2.0, 3.0, 7.0]]))
    assert additive.rest == pytest.approx(0)
    assert np.isnan(Measured(axis, points, np.array([[1.0], [2.0]])).margin)
    assert np.isnan(Measured(axis, points, m.metrics, learnt=0.4).margin)


def test_a_missing_model_takes_its_point_out_and_not_the_others() -> None:
    m = measured("zero-shot", lambda point: {"C2": 1.0, "C2 + GSP": 2.0, "C2 + zero-shot": 3.0}.get(point.series, 4.0))
    figures = m.metrics.copy()
    figures[1, 0] = np.nan
    gone = Measured(m.axis, m.points, figures)
    assert not np.isnan(gone.rest)
    assert [claim.verdict for claim in claims.judge_axis(gone)] == ["not tested"]


@pytest.mark.parametrize(
    ("axis", "as_they_saw", "otherwise"),
    [
        (
            "keep",
            lambda p: 20 - 3 * max(0, p.values.get("keep", p.values.get(KEEP, 1)) - 0.4),
            lambda p: 20 + 20 * p.values.get(KEEP, 1) ** 2,
        ),
        (
            "prototypes",
            lambda p: 20 - 10 / p.values[M] * (p.values[M] < 64) if p.values else 18,
            lambda p: 20 - p.values[M] / 20 if p.values else 21,
        ),
        (
            "batch-size",
            lambda p: 20 + (p.values["batch_size"] / 32 if p.series == "C2" else 5),
            lambda p: 20 - p.values["batch_size"] / 32 + (p.values["batch_size"] / 10 if "CCP" in p.series else 0),
        ),
        (
            "zero-shot",
            lambda p: {"C2": 20.58, "C2 + GSP": 20.85, "C2 + zero-shot": 21.08}.get(p.series, 21.52),
            lambda p: {"C2": 21.0, "C2 + GSP": 20.0, "C2 + zero-shot": 20.0}.get(p.series, 19.0),
        ),
        (
            "sharpness-prototypes",
            lambda p: (
                20
                - abs(np.log2(p.values[M] / 64))
                - abs(np.log(p.values[SHARPNESS] / (5 if p.series == "C2" else 0.5)))
            ),
            lambda p: (
                20
                + abs(np.log2(p.values[M] / 64))
                + abs(np.log(p.values[SHARPNESS] / (5 if p.series == "C2" else 0.5)))
            ),
        ),
        (
            "lambda-proxies",
            lambda p: 20 - (1 if p.values["ccp_pull"] in (0, 1, 10) else 0) - 2.0 / p.values["ccp_proxies"],
            lambda p: 20 + (1 if p.values["ccp_pull"] in (0, 1, 10) else 0) - p.values["ccp_proxies"] ** 2 / 10,
        ),
        (
            "pool-proxies",
            lambda p: 20 + p.values["ccp_proxies"] + (p.values["ccp_pool"] / 4 if p.values["ccp_proxies"] > 1 else 0),
            lambda p: 20 - p.values["ccp_proxies"] + p.values["ccp_pool"] * (-1 if p.values["ccp_proxies"] > 1 else 1),
        ),
        (
            "alternating",
            lambda p: 20 + p.series.endswith("CCP") - p.series.endswith("problem"),
            lambda p: 20 - p.series.endswith("CCP") + p.series.endswith("problem"),
        ),
        (
            "iterations",
            lambda p: 20 - (1.0 if p.values and next(iter(p.values.values())) < 25 else 0),
            lambda p: 20 - (next(iter(p.values.values())) / 50 if p.values else 0),
        ),
        (
            "embedding-size",
            lambda p: (
                60
                - (2 if p.values["dim"] < 128 else 0)
                - (5 + 3 * (p.values["dim"] == 1024) if p.series == "MS" else 0)
            ),
            lambda p: 60 - p.values["dim"] / 200 * (p.series != "MS") + 5 * (p.series == "MS"),
        ),
    ],
)
def test_verdicts_both_ways(
    axis: str, as_they_saw: Callable[[Point], float], otherwise: Callable[[Point], float]
) -> None:
    assert set(verdicts(axis, as_they_saw)) == {"reproduced"}
    assert set(verdicts(axis, otherwise)) == {"not reproduced"}
    assert set(verdicts(axis, as_they_saw, blocks=1)) == {"not tested"}


def test_verdict_on_poolings() -> None:
    both = {"GSP": 21.5, "average (GAP)": 20.5, "GSP, PNCA": 21.5, "average (GAP), PNCA": 20.5}
    best = verdicts("poolings", lambda p: both.get(p.series, 20.0))
    assert best == ["reproduced"] * 4
    beaten = verdicts("poolings", lambda p: {**both, "DeLF": 24.0}.get(p.series, 20.0))
    assert beaten == ["not reproduced", "not reproduced", "reproduced", "reproduced"]


def test_main_effects_of_the_published_table_by_hand() -> None:
    found = claims.published_effects("c2")
    low, high = (40.63, 40.41, 40.22, 40.07), (36.11, 39.11, 39.61, 35.36)
    assert found["sharpness"] == pytest.approx(np.mean(high) - np.mean(low))
    assert found["keep"] == pytest.approx((40.41 + 40.07 + 39.11 + 35.36 - 40.63 - 40.22 - 36.11 - 39.61) / 4)
    assert set(found) == {"num_prototypes", "keep", "sharpness", "zero_shot"}


def test_factorial_on_the_published_figures() -> None:
    """Their own table says of C2 what they say of it; of ProxyNCA++ it says the opposite for lambda and mu."""
    rows = {"C2": "c2", "ProxyNCA++": "proxy-nca++"}
    from lookalike.experiments.published import published

    def theirs(point: Point) -> float:
        of = published(table="5.4", loss=rows[point.series], settings=claims.short_point(point))
        assert of is not None
        return of[0].mean

    assert verdicts("factorial", theirs, noise=0.6) == ["reproduced", "reproduced", "reproduced", "not reproduced"]


def test_nothing_is_best_where_all_are_alike() -> None:
    assert verdicts("sharpness-prototypes", lambda _: 20.0) == ["not reproduced", "not reproduced"] * 2


def _by_prototypes(worse: float) -> Callable[[Point], float]:
    return lambda p: 20 - worse * (p.values[M] == 64)


def _four(gsp: float, zero: float, both: float) -> Callable[[Point], float]:
    return lambda p: 20 + {"C2": 0.0, "C2 + GSP": gsp, "C2 + zero-shot": zero}.get(p.series, both)


@pytest.mark.parametrize(
    ("axis", "levels", "expected"),
    [
        ("keep", lambda p: 23.0 if p.values.get(KEEP) == 1 else 20.0, ["not reproduced"]),
        ("prototypes", lambda p: 17.0 if p.values else 20.0, ["not reproduced"] * 2),
        ("prototypes", lambda p: 20.0 - p.values[M] / 200 if p.values else 15.0, ["partly"] * 2),
        ("zero-shot", _four(-2, -2, -1), ["not reproduced"]),
        ("zero-shot", _four(1, -1, 0.5), ["partly"]),
        ("zero-shot", _four(1, 1, 1), ["partly"]),
        ("zero-shot", _four(0, 0, 0), ["not reproduced"]),
        ("sharpness-prototypes", _by_prototypes(1.0), ["not reproduced"] * 4),
        ("embedding-size", lambda _: 60.0, ["reproduced", "not reproduced", "not reproduced"]),
    ],
)
def test_what_was_judged_too_kindly(axis: str, levels: Callable[[Point], float], expected: list[str]) -> None:
    assert verdicts(axis, levels) == expected


def test_the_text_tells_what_is_contradicted_and_the_number_that_was_used() -> None:
    (told,) = claims.judge_axis(measured("zero-shot", _four(1, -1, 0.5)))
    assert told.here.endswith("; contradicted: zero-shot improves, both are best")
    m = measured("sharpness-prototypes", lambda _: 20.0, noise=1.0)
    first, _, second, _ = claims.judge_axis(m)
    assert f"a difference counts from {m.margin_of(6):.2f} on" in first.here  # six sharpnesses
    assert f"a difference counts from {m.margin_of(4):.2f} on" in second.here
    m = measured("lambda-proxies", lambda _: 20.0, noise=1.0)
    first, second = claims.judge_axis(m)
    assert f"a difference counts from {m.margin_of(5):.2f} on" in first.here
    assert f"a difference counts from {m.margin_of(7):.2f} on" in second.here


def test_alike_needs_that_a_difference_could_be_seen() -> None:
    for noise, expected in ((0.1, "reproduced"), (2.0, "not tested")):
        m = measured("iterations", lambda _: 20.0, noise=noise)
        told = claims.judge_axis(m)
        assert {claim.verdict for claim in told} == {expected}
    assert told[0].here.endswith("; too coarse for similar performance, where 0.5 would matter")


def test_a_missing_alternative_tests_nothing() -> None:
    m = measured("poolings", lambda p: {"GSP": 21.5, "average (GAP)": 20.5}.get(p.series, 20.0))
    figures = m.metrics.copy()
    figures[[p.series for p in m.points].index("DeLF")] = np.nan
    told = claims.judge_axis(Measured(m.axis, m.points, figures))
    assert [claim.verdict for claim in told[:2]] == ["not tested", "not tested"]
    assert "not tested" not in {claim.verdict for claim in told[2:]}  # the other loss has all of its rows
    assert "DeLF: nan" in told[0].here


def test_more_steps() -> None:
    last = dict.fromkeys(("C2", "C2 + CCP", "MS", "MS + CCP", "Triplet", "Triplet + CCP"), [1000.0] * 2)
    steps = {
        **{"C2": [100, 110], "C2 + CCP": [120, 134], "MS": [100, 100], "MS + CCP": [90, 91]},
        **{"Triplet": [100, 100], "Triplet + CCP": [950, 960]},
    }
    told = claims.judge_steps(steps, last)
    assert [claim.verdict for claim in told] == ["reproduced", "not reproduced", "not tested"]
    assert "+11% in sop, +11% in inshop" in told[0].paper  # 62K to 69K, 114K to 127K
    for ccp, expected in (
        ([160, 162], "partly"),
        ([115, 200], "not tested"),
        ([np.nan, 120], "not tested"),
        ([101, 102], "not reproduced"),
    ):
        assert claims.judge_steps({**steps, "C2": [100, 100], "C2 + CCP": ccp}, last)[0].verdict == expected
    alone = {"C2": [100.0], "C2 + CCP": [120.0]}
    assert claims.judge_steps({**steps, **alone}, last)[0].verdict == "not tested"


def test_steps_are_told_seed_by_seed(tmp_path: Path) -> None:
    axis = load_axis("alternating")
    points = axis.points("all")
    results: dict[int, list[Any]] = {}
    for i in range(len(points)):
        results[i] = [SimpleNamespace(best_step=100 + 10 * i + seed, steps=1000) for seed in range(2)]
    m = Measured(axis, points, np.ones((len(points), 2)))
    context: Any = SimpleNamespace(out=tmp_path)
    settings: Any = None
    rows: Any = SimpleNamespace(cells={i: [] for i in results})
    _, told, numbers = effects._draw(m, settings, context, rows, results)
    assert numbers["best_step"][points[1].series] == [110.0, 111.0]
    assert "not tested" not in {claim.verdict for claim in told}


def test_what_never_moved_says_nothing_of_chance() -> None:
    axis = load_axis("zero-shot")
    figures = np.array([[1.0, 2.0], [2.0, 4.0], [6.0, 6.0], [1.0, 1.0]])
    points = axis.points("all")
    all_points, moved = Measured(axis, points, figures), Measured(axis, points, figures, stuck=frozenset({2, 3}))
    assert (all_points.freedom, moved.freedom) == (3, 1)
    assert moved.rest == pytest.approx(0.5)
    assert moved.of(points[2].series).reduce() == 6.0


def test_on_par_is_neither_ahead_nor_behind() -> None:
    assert verdicts("batch-size", lambda p: 20.0 + 4 * (p.values["batch_size"] > 100))[1] == "not reproduced"
    assert verdicts("batch-size", lambda p: 20.0 - 4 * (p.values["batch_size"] > 100))[1] == "not reproduced"


@pytest.mark.parametrize("gradient", ["closed-form", "autograd"])
def test_many_rounds_are_the_exact_layer(gradient: Any) -> None:
    torch.manual_seed(0)
    exact = GeneralizedSumPool(8, 5, 0.3, 5.0)
    rounds = effects_iterated.IteratedSumPool(8, 5, 0.3, 5.0, iterations=300, gradient=gradient)
    rounds.load_state_dict(exact.state_dict())
    features = torch.randn(3, 10, 8, requires_grad=True)
    outputs, gradients = [], []
    for layer in (exact, rounds):
        pooled = layer(features, details=True)
        outputs.append(pooled)
        loss = pooled.vector.square().sum() + pooled.attributes.square().sum()
        gradients.append(torch.autograd.grad(loss, (features, layer.prototypes)))
    for one, other in zip((*outputs[0], *gradients[0]), (*outputs[1], *gradients[1]), strict=True):
        torch.testing.assert_close(one, other, atol=2e-4, rtol=2e-3)
    few = effects_iterated.IteratedSumPool(8, 5, 0.3, 5.0, iterations=1, gradient=gradient)
    few.load_state_dict(exact.state_dict())
    assert (few(features, details=True).weights - outputs[0].weights).abs().max() > 1e-3


def test_autograd_keeps_every_round_and_the_closed_form_none() -> None:
    found = effects_iterated.costs((4, 9, 6, 5), (2, 12), repeats=1, tick=lambda _: None)
    kept = {(cost.way, cost.iterations): cost.megabytes for cost in found}
    ways = effects_iterated.CLOSED_FORM, effects_iterated.AUTOGRAD
    assert kept[ways[0], 2] == pytest.approx(kept[ways[0], 12])
    assert kept[ways[1], 12] >= kept[ways[1], 2] + 10 * 4 * 9 * 4 / 1e6  # at least the residual (4, 9) of each round
    assert all(cost.milliseconds >= 0 for cost in found)


def test_the_iterated_layer_is_known_inside_only() -> None:
    with effects_iterated.registered():
        assert isinstance(poolings.create("gsp-iterated", 4, iterations=3), effects_iterated.IteratedSumPool)
    with pytest.raises(ValueError, match="no pooling is called 'gsp-iterated'"):
        poolings.create("gsp-iterated", 4)


def test_miniature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["study", "effects", "--miniature", "--out", str(tmp_path), "--set"]
    assert main([*words, "axis=[keep, iterations]"]) == 0
    said = capsys.readouterr()
    numbers = json.loads((tmp_path / "numbers.json").read_text())
    points = numbers["axes"]["keep"]["points"]
    assert [point.get("pooling_settings.keep") for point in points] == [0.1, 1.0, None]
    assert len(numbers["axes"]["iterations"]["costs"]) == 5
    assert {claim["verdict"] for claim in numbers["claims"][:2]} == {"not tested"}  # one seed
    for name in ("keep.png", "keep.svg", "keep.csv", "iterations.png", "index.html"):
        assert (tmp_path / name).stat().st_size > 0
    assert "letters: 2 steps" in said.err
    done = {file: file.stat().st_mtime_ns for file in (tmp_path / "benchmark").rglob("result.json")}
    assert len(done) == 1 + 3 + 5
    assert main([*words, "axis=keep"]) == 0  # nothing is done again
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "benchmark").rglob("result.json")} == done


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("axis=kep", "there is no axis 'kep' (did you mean 'keep'?)"),
        ("points=few", "points must be one of all, some, ends, got 'few'"),
        ("steps=0", "steps must be"),
        ("set='size'", "a setting must be given as name=value, got 'size'"),
        ("drawn=cub", "drawn must be glyphs"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: str, message: str
) -> None:
    assert main(["study", "effects", "--miniature", "--out", str(tmp_path / "out"), "--set", changes]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"lookalike study: {message}")
    assert said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_letters_are_those_of_the_drawn_classes() -> None:
    arguments = {"test_classes": "100", "size": "32"}
    assert effects_runs.parse_arguments("glyphs(test_classes=100, size = 32)") == arguments
    assert effects_runs.parse_arguments("glyphs") == {}
