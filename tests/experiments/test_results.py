"""Rows, combinations, paired tests and joined models, against values worked out by hand or by listing everything."""

import json
import sys
from itertools import product
from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lookalike

sys.path.append(str(Path(__file__).parents[1] / "report"))

from fake_benchmark import write_failure, write_result

from lookalike.experiments import joined as joining
from lookalike.experiments.joined import JoinError, join_row, join_vectors
from lookalike.experiments.results import count_outdated, differing_settings, read_results, shared_settings
from lookalike.experiments.rows import Row
from lookalike.experiments.sections import Section, group_sections
from lookalike.experiments.significance import compare


def sections(out: Path, planned_folds: dict[str, int] | None = None) -> list[Section]:
    cells, _ = read_results(out)
    return group_sections(cells, planned_folds or {})


def rows(out: Path) -> dict[str, Row]:
    [section] = sections(out)
    return {row.title: row for row in section.rows}


def test_one_fold_is_the_mean_and_the_std_of_its_repeats(tmp_path: Path) -> None:
    for repeat, value in enumerate((0.2, 0.3, 0.7)):
        write_result(tmp_path, value, 0, repeat)
    summary = rows(tmp_path)["c2 + average"].summary("MAP@R")
    assert summary is not None
    assert summary.mean == pytest.approx(0.4)
    assert summary.std == pytest.approx(sqrt(0.07))  # (0.04 + 0.01 + 0.09) / 2
    assert (summary.best, summary.combinations) == (0.7, 3)


def test_four_folds_of_three_repeats_are_81_combinations(tmp_path: Path) -> None:
    values = np.random.default_rng(0).uniform(size=(4, 3))
    for fold, repeat in product(range(4), range(3)):
        write_result(tmp_path, values[fold, repeat], fold, repeat)
    row = rows(tmp_path)["c2 + average"]
    listed = [
        np.mean([values[fold, repeat] for fold, repeat in enumerate(chosen)]) for chosen in product(range(3), repeat=4)
    ]
    summary = row.summary("MAP@R")
    assert summary is not None
    assert summary == pytest.approx((np.mean(listed), np.std(listed, ddof=1), max(listed), 81))
    combinations = row.combinations()
    assert len({tuple(model.run for model in models) for models in combinations}) == 81
    assert all([model.fold for model in models] == [0, 1, 2, 3] for models in combinations)
    assert len({tuple(model.run for model in models) for models in row.combinations(most=10)}) == 10
    assert row.is_complete


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=3), min_size=1, max_size=4))
def test_summary_equals_listing(tmp_path_factory: pytest.TempPathFactory, values: list[list[float]]) -> None:
    out = tmp_path_factory.mktemp("uneven")
    for fold, repeats in enumerate(values):
        for repeat, value in enumerate(repeats):
            write_result(out, value, fold, repeat)
    summary = rows(out)["c2 + average"].summary("MAP@R")
    listed = [np.mean(chosen) for chosen in product(*values)]
    assert summary is not None
    assert summary.mean == pytest.approx(np.mean(listed))
    assert (summary.std is None) == (len(listed) == 1)
    if summary.std is not None:
        assert summary.std == pytest.approx(np.std(listed, ddof=1), abs=1e-9)


def test_missing_runs_are_listed(tmp_path: Path) -> None:
    for fold, repeat in product(range(2), range(2)):
        write_result(tmp_path, 0.3, fold, repeat)
    write_result(tmp_path, 0.4, 0, 0, pooling="gsp")
    write_failure(tmp_path, "it broke", 1, 0, pooling="gsp")
    write_failure(tmp_path, "never", 0, 0, pooling="max")
    found = rows(tmp_path)
    assert found["c2 + average"].is_complete
    partly, never = found["c2 + gsp"], found["c2 + max"]
    assert partly.missing == ((0, 1), (1, 0), (1, 1))
    assert partly.failed == 1
    assert partly.summary("MAP@R") == (0.4, None, 0.4, 1)
    assert never.summary("MAP@R") is None
    assert not never.is_complete


def test_a_protocol_may_plan_more_folds_than_were_begun(tmp_path: Path) -> None:
    write_result(tmp_path, 0.3)
    [section] = sections(tmp_path, {"ours": 2})
    assert section.rows[0].missing == ((1, 0),)


def test_versions_and_test_pictures_have_sections_of_their_own(tmp_path: Path) -> None:
    write_result(tmp_path, 0.2, version="old")
    write_result(tmp_path, 0.4, version="new")
    write_result(tmp_path, 0.6, version="new", test_pictures="t1", key="k")
    found = sections(tmp_path)
    assert [(section.version, section.tested) for section in found] == [("new", "t1"), ("new", "t0"), ("old", "t0")]
    assert [section.rows[0].results[0].test["MAP@R"] for section in found] == [0.6, 0.4, 0.2]
    assert all(len(section.results) == 1 for section in found)


def test_results_with_a_source_hash_instead_of_a_version_are_outdated(tmp_path: Path) -> None:
    write_result(tmp_path, 0.4)
    file = write_result(tmp_path, 0.2, 0, 1) / "result.json"
    content = json.loads(file.read_text())
    del content["version"]
    file.write_text(json.dumps({**content, "code": "0123456789abcdef"}))
    results, unreadable = read_results(tmp_path)
    assert [result.is_outdated for result in results] == [False, True]
    assert not unreadable
    assert count_outdated(tmp_path) == 1
    assert sorted(len(section.results) for section in sections(tmp_path)) == [1, 1]


def test_other_settings_under_the_same_title_are_a_row_of_their_own(tmp_path: Path) -> None:
    write_result(tmp_path, 0.2, settings={"steps": 100}, key="a")
    write_result(tmp_path, 0.4, settings={"steps": 200}, key="b")
    found = rows(tmp_path)
    assert set(found) == {"c2 + average [steps=100]", "c2 + average [steps=200]"}
    assert all(len(row.results) == 1 for row in found.values())


def test_settings_that_each_run_decides_do_not_split_a_row(tmp_path: Path) -> None:
    for steps, repeat in product((100, 200), range(3)):
        write_result(
            tmp_path, 0.2, 0, repeat, settings={"lr": 0.001 + repeat / 1e5, "steps": steps}, key=f"{steps} {repeat}"
        )
    found = rows(tmp_path)
    assert {title: len(row.results) for title, row in found.items()} == {
        "c2 + average [steps=100]": 3,
        "c2 + average [steps=200]": 3,
    }
    assert all(row.differing == ("lr",) for row in found.values())


def test_a_row_lists_differing_settings_and_has_the_latest_results(tmp_path: Path) -> None:
    write_result(tmp_path, 0.2, 0, 0, settings={"lr": 1.0})
    write_result(tmp_path, 0.4, 0, 1, settings={"lr": 2.0})
    assert rows(tmp_path)["c2 + average"].differing == ("lr",)
    again = tmp_path / "again"
    write_result(again, 0.2, key="a")
    write_result(again, 0.4, key="b")
    [row] = rows(again).values()
    assert row.results[0].test["MAP@R"] == 0.4
    assert [old.key for old in row.older] == ["a"]


def test_shared_settings_leave_out_the_seed(tmp_path: Path) -> None:
    write_result(tmp_path, 0.2, 0, 0, settings={"lr": 1.0, "dim": 128})
    write_result(tmp_path, 0.2, 0, 1, settings={"lr": 2.0, "dim": 128})
    results, _ = read_results(tmp_path)
    assert differing_settings(results) == ["lr"]
    assert shared_settings(results) == {"backbone": "resnet20", "dim": 128, "monitor": "MAP@R", "steps": 300}


def test_damaged_cells_are_listed_and_others_are_read(tmp_path: Path) -> None:
    write_result(tmp_path, 0.2)
    (write_result(tmp_path, 0.3, 0, 1) / "result.json").write_text("{")
    folder = write_result(tmp_path, 0.3, 0, 2)
    content = json.loads((folder / "result.json").read_text())
    del content["best_step"]
    (folder / "result.json").write_text(json.dumps(content))
    results, unreadable = read_results(tmp_path)
    assert len(results) == 1
    assert [path.name[:3] for path, _ in unreadable] == ["001", "002"]
    assert "'best_step' is missing" in unreadable[1][1]
    with pytest.raises(ValueError, match="is not a folder"):
        read_results(tmp_path / "nowhere")


def test_the_baseline(tmp_path: Path) -> None:
    for loss, pooling, methods in (
        ("c1", "average", ()),
        ("c1", "gsp", ()),
        ("c2", "average", ("ccp",)),
        ("c2", "max", ()),
        ("ms", "average+max", ()),
        ("ms", "max+gsp", ()),
    ):
        write_result(tmp_path, 0.2, loss=loss, pooling=pooling, methods=methods)
    [section] = sections(tmp_path)
    baselines = {row.title: section.baseline_of(row).title for row in section.rows}
    assert baselines["c1 + gsp"] == baselines["c1 + average"] == "c1 + average"
    assert baselines["c2 + max"] == baselines["c2 + average + ccp"] == "c1 + average"  # the first row
    assert baselines["ms + max+gsp"] == "ms + average+max"
    assert section.baseline_of(section.rows[0], "c2 + max").title == "c2 + max"


def test_the_best_repeat_is_chosen_by_what_steered_it(tmp_path: Path) -> None:
    write_result(tmp_path, 0.5, 0, 0, p_at_1=0.6, settings={"monitor": "P@1"})
    write_result(tmp_path, 0.4, 0, 1, p_at_1=0.7, settings={"monitor": "P@1"})
    best = rows(tmp_path)["c2 + average"].best_repeat()
    assert best is not None
    assert best.repeat == 1
    write_result(tmp_path, 0.4, 1, 0)
    assert rows(tmp_path)["c2 + average"].best_repeat() is None


def paired(out: Path, ours: list[float], theirs: list[float]) -> tuple[Row, Row]:
    for pooling, values in (("gsp", ours), ("average", theirs)):
        for repeat, value in enumerate(values):
            write_result(out, value, 0, repeat, pooling=pooling)
    found = rows(out)
    return found["c2 + gsp"], found["c2 + average"]


def test_paired_t_test_by_hand(tmp_path: Path) -> None:
    # differences 0.1, 0.2, 0.3: t = 0.2 / (0.1 / sqrt 3) = 2 sqrt 3; two degrees of freedom: p = 1 - t / sqrt(2 + t^2)
    found = compare(*paired(tmp_path, [0.3, 0.5, 0.7], [0.2, 0.3, 0.4]), "MAP@R")
    t = 2 * sqrt(3)
    assert found.pairs == 3
    assert (found.difference, found.spread, found.level) == pytest.approx((0.2, 0.1, 0.3))
    assert found.t_test == pytest.approx(1 - t / sqrt(2 + t * t))
    assert found.wilcoxon is None


def test_wilcoxon_by_hand(tmp_path: Path) -> None:
    # six differences of one sign: 2 of the 2^6 ways to choose signs are as extreme
    theirs = [0.3] * 6
    found = compare(*paired(tmp_path, [0.31, 0.33, 0.36, 0.4, 0.45, 0.51], theirs), "MAP@R")
    assert found.wilcoxon == pytest.approx(2 / 64)


def test_pairs_are_runs_and_not_combinations(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    for pooling, fold, repeat in product(("gsp", "average"), range(2), range(3)):
        if (pooling, fold, repeat) != ("gsp", 1, 2):
            write_result(tmp_path, chance.uniform(), fold, repeat, pooling=pooling)
    found = rows(tmp_path)
    assert compare(found["c2 + gsp"], found["c2 + average"], "MAP@R").pairs == 5


def test_there_is_no_p_value_without_spread_or_pairs(tmp_path: Path) -> None:
    same = compare(*paired(tmp_path / "same", [0.3, 0.4], [0.2, 0.3]), "MAP@R")
    assert (same.t_test, same.reason) == (None, "all pairs have the same difference")
    assert same.difference == pytest.approx(0.1)
    single = compare(*paired(tmp_path / "single", [0.3], [0.2]), "MAP@R")
    assert (single.t_test, single.pairs, single.reason) == (None, 1, "one pair is too few for a test")
    assert single.difference == pytest.approx(0.1)
    write_result(tmp_path / "none", 0.3, 0, 0, pooling="gsp")
    write_result(tmp_path / "none", 0.3, 0, 1)
    found = rows(tmp_path / "none")
    apart = compare(found["c2 + gsp"], found["c2 + average"], "MAP@R")
    assert (apart.pairs, apart.difference, apart.reason) == (0, None, "no fold and repeat is done in both")


LABELS = np.repeat(np.arange(6), 4)


def with_vectors(out: Path, folds: int = 2, repeats: int = 2, **more: object) -> dict[tuple[int, int], np.ndarray]:
    chance = np.random.default_rng(3)
    vectors = {}
    for fold, repeat in product(range(folds), range(repeats)):
        near = chance.normal(size=(6, 5))[LABELS] + chance.normal(size=(len(LABELS), 5))
        vectors[fold, repeat] = (near * (1 + 9 * fold)).astype(np.float32)  # of other lengths, which must not count
        write_result(out, 0.3, fold, repeat, vectors=vectors[fold, repeat], labels=LABELS, **more)
    return vectors


def by_hand(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Cosines of joined vectors are means of cosines: (n, n), without joining anything."""

    def cosines(vectors: np.ndarray) -> np.ndarray:
        scaled = vectors / np.sqrt((vectors.astype(float) ** 2).sum(1))[:, None]
        return scaled @ scaled.T

    return (cosines(first) + cosines(second)) / 2


def test_joined_models_rank_by_the_mean_of_their_cosines(tmp_path: Path) -> None:
    vectors = with_vectors(tmp_path)
    found = join_row(rows(tmp_path)["c2 + average"], tmp_path)
    assert (found.dim, found.combinations, len(found.metrics)) == (10, 4, 4)
    expected = []
    for i, j in product(range(2), range(2)):
        scores = by_hand(vectors[0, i], vectors[1, j])
        np.fill_diagonal(scores, -np.inf)
        hits = LABELS[(-scores).argsort(1)] == LABELS[:, None]
        precision = hits.cumsum(1) / np.arange(1, len(LABELS) + 1)
        expected.append((precision * hits)[:, :3].sum(1).mean() / 3)  # each has 3 others
    assert [figures["MAP@R"] for figures in found.metrics] == pytest.approx(expected)
    assert found.summary("MAP@R")[:2] == pytest.approx((np.mean(expected), np.std(expected, ddof=1)))
    assert {"R@1", "R@2"} <= set(found.metrics[0])


def test_joined_models_are_of_length_one() -> None:
    chance = np.random.default_rng(0)
    first, second = chance.normal(size=(4, 3)), chance.normal(size=(4, 2))
    first[2] = second[2] = 0
    both = join_vectors([first, second])
    assert both.shape == (4, 5)
    assert np.linalg.norm(both, axis=1) == pytest.approx([1, 1, 0, 1], abs=1e-6)
    assert both[0, :3] == pytest.approx(first[0] / np.linalg.norm(first[0]) / sqrt(2), abs=1e-6)


def test_queries_are_compared_with_the_gallery(tmp_path: Path) -> None:
    roles = np.where(np.arange(len(LABELS)) % 2, "query", "gallery")
    vectors = with_vectors(tmp_path, repeats=1, roles=roles)
    [figures] = join_row(rows(tmp_path)["c2 + average"], tmp_path).metrics
    both = join_vectors([vectors[0, 0], vectors[1, 0]])
    query, gallery = roles == "query", roles == "gallery"
    expected = lookalike.retrieval_metrics(both[query], LABELS[query], both[gallery], LABELS[gallery], ks=(1, 2))
    assert figures == pytest.approx(expected)
    assert figures["queries"] == 12


def test_measured_combinations_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_vectors(tmp_path)
    row = rows(tmp_path)["c2 + average"]
    before = join_row(row, tmp_path)
    calls: list[object] = []
    original = joining._measure
    monkeypatch.setattr(joining, "_measure", lambda *given: calls.append(given) or original(*given))
    assert join_row(row, tmp_path) == before
    assert not calls
    file, *_ = sorted((tmp_path / "joined").glob("*.json"))
    file.write_text("{")  # a damaged file is measured anew
    assert join_row(row, tmp_path) == before
    assert len(calls) == 2


def test_why_models_cannot_be_joined(tmp_path: Path) -> None:
    write_result(tmp_path / "one", 0.3)
    with pytest.raises(JoinError, match="one fold only"):
        join_row(rows(tmp_path / "one")["c2 + average"], tmp_path / "one")
    write_result(tmp_path / "none", 0.3, 0)
    write_result(tmp_path / "none", 0.3, 1)
    with pytest.raises(JoinError, match="vectors of fold 1, repeat 1 were not kept"):
        join_row(rows(tmp_path / "none")["c2 + average"], tmp_path / "none")
    lacking = tmp_path / "lacking"
    with_vectors(lacking)
    write_failure(lacking, "broken", 2, 0)
    with pytest.raises(JoinError, match="no model of fold 3 is done"):
        join_row(rows(lacking)["c2 + average"], lacking)
    other = tmp_path / "other"
    with_vectors(other, folds=1, repeats=1)
    write_result(other, 0.3, 1, vectors=np.ones((24, 5), np.float32), labels=LABELS[::-1])
    with pytest.raises(JoinError, match="tested on different pictures: their labels differ"):
        join_row(rows(other)["c2 + average"], other)
    short = tmp_path / "short"
    with_vectors(short, folds=1, repeats=1)
    write_result(short, 0.3, 1, vectors=np.ones((23, 5), np.float32), labels=LABELS)
    with pytest.raises(JoinError, match=r"vectors of fold 2, repeat 1 are \(23, 5\), but there are 24"):
        join_row(rows(short)["c2 + average"], short)
