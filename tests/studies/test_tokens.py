import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from lookalike_studies.framework.hulls import Overlap, class_hulls, convex_hull, overlap
from lookalike_studies.tokens.claims import GAIN, GAP, GSP, Results, judge_hulls, measure
from lookalike_studies.tokens.model import Run, Stack, contrastive, create_stack, draw_samples, pool, train
from lookalike_studies.tokens.study import STUDY

from lookalike import GeneralizedSumPool, objectives, retrieval_metrics
from lookalike.cli import main

CHANGES = {"classes": 5, "tokens": 3, "background": 2, "size": 20, "prototypes": 4, "epoch": 5, "validation": 4}
SMALL = STUDY.load_settings("full", {**CHANGES, "rate": 0.01})


def test_a_sample_has_class_tokens_and_background() -> None:
    samples = draw_samples(SMALL, 400, np.random.default_rng(0))
    assert samples.bags.shape == (2000, 20)
    labels = samples.labels[:, None].expand(-1, 20)
    assert (samples.bags[samples.is_class_token] // 3 == labels[samples.is_class_token]).all()
    assert ((samples.bags[~samples.is_class_token] >= 15) & (samples.bags[~samples.is_class_token] < 17)).all()
    shares = samples.is_class_token.double().mean(1)
    assert float(shares.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(shares.std()) == pytest.approx(0.1, abs=0.01)
    counts = torch.bincount(samples.bags.flatten(), minlength=17)
    assert (counts[15:] > 9000).all()  # both of the background, half of 40,000 places
    assert (counts[:15] > 1100).all()  # a fifteenth of the other half


def test_shares_beyond_a_bag_are_cut_off() -> None:
    wide = replace(SMALL, spread=5.0)
    shares = draw_samples(wide, 50, np.random.default_rng(1)).is_class_token.double().mean(1)
    assert {0.0, 1.0} <= set(shares.tolist())


def test_pooling_of_a_stack_is_the_layer() -> None:
    """Looked up by token, of runs with different keep, sharpness and numbers of prototypes, against the layer."""
    runs = [Run(0.1, 0, 0.3, 20.0, 7), Run(0.1, 1, 0.5, 50.0, 4), Run(0.2, 2, 0.2, 5.0, 17)]
    stack = create_stack(runs, SMALL)
    samples = [draw_samples(SMALL, 3, np.random.default_rng(seed)) for seed in range(3)]
    vectors, weights = stack.pool(torch.stack([each.bags for each in samples]))
    vectors.square().sum().backward()
    for i, run in enumerate(runs):
        layer = GeneralizedSumPool(2, run.prototypes, run.keep, run.sharpness).double()
        tokens = stack.tokens[i].detach().double().requires_grad_()
        with torch.no_grad():
            layer.prototypes.copy_(stack.prototypes[i, : run.prototypes])
        known = layer(tokens[samples[i].bags], details=True)
        assert torch.allclose(vectors[i].double(), known.vector, atol=1e-6)
        assert torch.allclose(weights[i].double(), known.weights, atol=1e-5)
        known.vector.square().sum().backward()
        assert stack.tokens.grad is not None
        assert stack.prototypes.grad is not None
        of_prototypes = stack.prototypes.grad[i]
        pairs = ((stack.tokens.grad[i], tokens.grad), (of_prototypes[: run.prototypes], layer.prototypes.grad))
        for gradient, reference in pairs:
            assert gradient.double() == pytest.approx(reference, abs=1e-4 * float(reference.abs().max()))
        assert (of_prototypes[run.prototypes :] == 0).all()


def test_average_pooling_is_the_mean_and_what_keep_one_gives() -> None:
    samples = draw_samples(SMALL, 3, np.random.default_rng(0))
    stack = create_stack([Run(0.1, 0)], SMALL)
    vectors, weights = stack.pool(samples.bags[None])
    assert torch.allclose(vectors[0], stack.tokens[0][samples.bags].mean(1))
    assert torch.allclose(weights, torch.full_like(weights, 0.05))
    nearly = Stack([Run(0.1, 0, 1 - 1e-6, 20.0, 4)], stack.tokens.detach(), [torch.zeros(4, 2) + 0.1])
    assert torch.allclose(nearly.pool(samples.bags[None])[0], vectors, atol=1e-5)


def test_the_loss_of_many_runs_is_that_of_each() -> None:
    vectors = 0.2 * torch.randn(3, 20, 2, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(5).repeat_interleave(4)
    objective = objectives.create("c2", negative_margin=0.1, normalise=False)
    each = torch.stack([objective(one, labels).value for one in vectors])
    assert torch.allclose(contrastive(vectors, labels, 0.1), each)


def test_runs_train_as_if_they_were_alone() -> None:
    runs = [Run(0.1, 0, 0.3, 20.0, 4), Run(0.2, 0, 0.5, 30.0, 6), Run(0.1, 1, 0.3, 20.0, 4)]
    ticks: list[int] = []
    together = train(runs, SMALL, 3, ticks.append)
    assert sum(ticks) == 3 * 5 * 3
    for run, one in zip(runs, together, strict=True):
        (alone,) = train([run], SMALL, 3, lambda _: None)
        assert alone.curve == pytest.approx(one.curve, abs=1e-6)
        assert np.allclose(alone.tokens, one.tokens, atol=1e-5)
        assert np.allclose(alone.prototypes, one.prototypes, atol=1e-5)
        assert len(one.curve) == 4
        assert one.best == max(one.curve)
        assert np.abs(one.tokens).max() <= np.float32(0.3)
        assert one.prototypes.shape == (run.prototypes, 2)
    assert np.array_equal(together[0].first_tokens, together[1].first_tokens)  # of one seed
    assert not np.array_equal(together[0].first_tokens, together[2].first_tokens)


def test_tokens_stay_in_their_square_and_each_run_stops_when_nothing_improves() -> None:
    hasty = replace(SMALL, rate=1.0, patience=2)
    runs = [Run(0.1, seed, 0.3, 20.0, 4) for seed in range(6)]
    found = train(runs, hasty, 30, lambda _: None)
    assert len({len(each.curve) for each in found}) > 1
    for each in found:
        assert np.abs(each.tokens).max() <= np.float32(0.3)
        assert len(each.curve) < 31
        assert each.curve.index(each.best) == len(each.curve) - 3


def test_training_learns() -> None:
    longer = replace(SMALL, epoch=40)
    runs = [Run(0.1, seed, 0.3, 30.0, 8) for seed in range(2)]
    for run, found in zip(runs, train(runs, longer, 3, lambda _: None), strict=True):
        assert found.best > found.curve[0] + 0.15
        checked = draw_samples(SMALL, longer.validation, np.random.default_rng((run.seed, 1)))
        vectors, _ = pool(run, found.tokens, found.prototypes, checked)  # as they were at their best
        assert retrieval_metrics(vectors, checked.labels, distance="l2")["MAP@R"] == pytest.approx(found.best)


def test_overlap_by_hand() -> None:
    square = torch.tensor([[0.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.0, 2.0]])
    found = overlap(
        [convex_hull(square), convex_hull(square + 1), convex_hull(square / 4 + 10), convex_hull(square * 0)]
    )
    assert found.areas.tolist() == [4, 4, 0.25, 0]
    assert found.common[0, 1] == found.common[1, 0] == 1
    assert float(found.common.sum()) == 2
    assert found.pairs == pytest.approx(1 / 6)
    assert found.share == pytest.approx(0.25 / 6)
    assert found.area == pytest.approx(1 / 8.25)
    nothing = Overlap(torch.zeros(2), torch.zeros(2, 2))
    assert (nothing.pairs, nothing.share, nothing.area) == (0, 0, 0)


def test_class_hulls_are_by_class() -> None:
    points = torch.tensor([[0.0, 0.0], [5.0, 5.0], [1.0, 0.0], [0.0, 1.0]])
    assert [len(hull) for hull in class_hulls(points, torch.tensor([0, 1, 0, 0]))] == [3, 1]


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([70.0, 65.0], "reproduced"),
        ([60.0], "not tested"),
        ([200.0, -80.0], "not tested"),
        ([80.0, 52.0], "not tested"),
        ([60.0, np.nan], "not tested"),
        ([12.0, 9.0, 10.0], "partly"),
        ([49.0, 51.0, 20.0], "partly"),
        ([30.0, -25.0, 12.0], "not tested"),  # nobody knows
        ([2.0, 2.0], "not reproduced"),
        ([-70.0, -70.0], "not reproduced"),
        ([3.0, 9.0, 20.0], "not tested"),  # 5 may well be there
    ],
)
def test_verdict_on_gain(gains: list[float], verdict: str) -> None:
    assert replace(GAIN, here="").judge({GSP: gains, GAP: [0.0] * len(gains)}).verdict == verdict


@pytest.mark.parametrize(
    ("gap", "gsp", "verdict"),
    [
        ([0.1, 0.101], [0.0, 0.0], "reproduced"),
        ([0.1, 0.1], [0.04, 0.04], "partly"),
        ([0.03, 0.03], [0.0, 0.0], "partly"),
        ([0.1, 0.1], [0.08, 0.08], "not reproduced"),
        ([0.2, 0.02], [0.0, 0.0], "not tested"),  # nobody knows
        ([1e-9, 1e-9], [0.0, 0.0], "not reproduced"),
        ([0.0, 0.0], [0.1, 0.1], "not reproduced"),
        ([0.1], [0.0], "not tested"),
        ([0.1, np.nan], [0.0, 0.0], "not tested"),
    ],
)
def test_verdict_on_hulls(gap: list[float], gsp: list[float], verdict: str) -> None:
    percent = {GAP: [100 * share for share in gap], GSP: [100 * share for share in gsp]}
    assert judge_hulls({**percent, "pairs with GAP": [0.0], "pairs with GSP": [0.0]}, "").verdict == verdict


def test_the_margin_is_chosen_by_validation_not_by_test() -> None:
    runs = {GAP: [Run(0.1, 0), Run(0.2, 0)], GSP: [Run(0.1, 0, 0.3, 20.0, 4), Run(0.2, 0, 0.5, 50.0, 6)]}
    longer = replace(SMALL, epoch=20, test=8)
    outcomes = []
    for pooling, of_pooling in runs.items():
        for run, trained in zip(of_pooling, train(of_pooling, longer, 1, lambda _: None), strict=True):
            outcomes.append(measure(pooling, run, trained, longer))
    results = Results(outcomes)
    for first, pooling in ((0, GAP), (2, GSP)):
        test = [outcome.metrics["MAP@R"] for outcome in outcomes[first : first + 2]]
        assert test[0] != test[1]
        worse = int(np.argmin(test))
        outcomes[first + worse].metrics["validation"] = 0.9
        outcomes[first + 1 - worse].metrics["validation"] = 0.1
        assert Results(outcomes).best_margin[pooling] == (0.1, 0.2)[worse]
    values = results.by_pooling({GAP: 0.2, GSP: 0.1}, "MAP@R")
    assert values == {GAP: [100 * outcomes[1].metrics["MAP@R"]], GSP: [100 * outcomes[2].metrics["MAP@R"]]}


def test_as_it_is_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    small = "classes=4, margins=[0.1, 0.3841], keep=0.3, sharpness=[20, 50], prototypes=8"
    assert main(["study", "tokens", "--miniature", "--out", str(out), "--set", small]) == 0
    names = {"index.html", "numbers.json", "parts", "margins.csv", "choosing.csv"}
    names |= {f"{name}.{kind}" for kind in ("png", "svg", "json") for name in FIGURES}
    assert {path.name for path in out.iterdir()} == names
    numbers = json.loads((out / "numbers.json").read_text())
    assert len(numbers["claims"]) == 4
    assert [(run["pooling"], run["margin"]) for run in numbers["runs"]] == [
        ("average", 0.1),
        ("average", 0.3841),
        ("gsp", 0.1),
        ("gsp", 0.3841),
    ]
    assert all(0 <= run["MAP@R"] <= 1 and len(run["curve"]) == 2 for run in numbers["runs"])
    said = capsys.readouterr()
    assert "chosen among 2 by validation" in said.err
    assert "points; m = 8, keep 0.3, sharpness" in said.out
    assert "were still improving in the last epochs." in said.out
    assert len(list((out / "parts").iterdir())) == 3


FIGURES = ("margins", "geometry-chosen", "geometry-published", "training")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("prototypes=100", "prototypes must be at most 68, the number of tokens, got (100,)"),
        ("keep=1", "every one of keep must be in (0, 1), got 1.0"),
        ("keep=0", "every one of keep must be in (0, 1), got 0.0"),
        ("published_margin=0.7", "published_margin must be one of margins, got 0.7"),
        ("seeds=1000", "seeds must not contain 1000, the seed of the search"),
        ("margins=[]", "margins must name at least one"),
        ("bound=-1", "bound must be finite and above 0"),
        ("classes=1", "classes must be at least 2, got 1"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: str, message: str
) -> None:
    assert main(["study", "tokens", "--out", str(tmp_path / "out"), "--set", changes]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(f"lookalike study: {message}")
    assert said.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_settings_are_the_thesis_s() -> None:
    full = STUDY.load_settings("full")
    assert (full.classes, full.tokens, full.background, full.size) == (16, 4, 4, 50)
    assert (full.share, full.spread, full.bound, full.rate, full.patience, full.per_class) == (
        0.5,
        0.1,
        0.3,
        1e-4,
        30,
        4,
    )
