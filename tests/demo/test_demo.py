"""The demo in miniature, and the rules of its race."""

import json
import os
import re
import time
from dataclasses import replace
from functools import partial
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lookalike._util.signals import RunFailed
from lookalike.cli import main
from lookalike.demo import page as demo_page
from lookalike.demo import parallel
from lookalike.demo.pictures import Shots, draw, in_cell
from lookalike.demo.run import QUICK, summarize
from lookalike.demo.training import CONTESTANTS, Budget, Contestant, Outcome
from lookalike.report.tables import Table


def test_the_whole_story_in_miniature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--quick", "--out", str(tmp_path), "--workers", "1", "--seed", "3"]) == 0
    told = capsys.readouterr().out
    for contestant in CONTESTANTS:
        assert contestant.name in told
    assert demo_page.WARNING in told
    assert "weight in the letter's cell" in told
    assert "lookalike train my_pictures/" in told
    figures = json.loads((tmp_path / "figures.json").read_text())
    rows = {row["name"]: row for row in figures["rows"]}
    assert list(rows) == [contestant.name for contestant in CONTESTANTS]
    assert rows["oracle, told the true cell"]["weight_on_letter"] == pytest.approx(1)
    assert rows["average pooling"]["weight_on_letter"] == pytest.approx(0.25)
    assert all(0 <= row["MAP@R"] <= 1 for row in rows.values())
    start = {(run["name"], run["seed"]): run["held_out"][0] for run in figures["all_runs"]}
    assert start["average pooling", 3] != start["average pooling", 4]  # there is nothing in it but the seed's network
    page = unescape((tmp_path / "index.html").read_text())
    top, rest = page.split("<table", 1)
    assert "the figures mean nothing" in top
    assert "points of MAP@R" not in rest
    assert "weight in the letter's cell" in rest
    assert "Outlined is the cell that shows the letter" in rest
    assert "each seed has its own pretrained network" in rest
    assert len(page) < 3e6
    assert len(re.findall(r"<img src=\"data:image/", page)) == 3 + len(CONTESTANTS)
    assert all(f"nearest neighbours under {contestant.name}" in page for contestant in CONTESTANTS)
    for said in ("8 prototypes", "learnt", "10 times the learning rate", "radius 20", "test classes in view"):
        assert said in page
    assert "also the quarter that is held out" in page
    assert "http" not in re.sub(r"data:image/[^\"]+", "", page).replace("http-equiv", "")


def test_results_do_not_depend_on_the_number_of_cores() -> None:
    before = torch.get_num_threads()
    assert parallel._on_one_thread(torch.get_num_threads) == 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("workers", [1, 2])
def test_tasks_return_in_order_and_the_first_error_is_raised(workers: int) -> None:
    tasks = [partial(divmod, 7, divisor) for divisor in (2, 3, 4)]
    assert parallel._run_tasks(workers, tasks, "work", " tasks") == [(3, 1), (2, 1), (1, 3)]
    with pytest.raises(ZeroDivisionError):
        parallel._run_tasks(workers, [*tasks, partial(divmod, 1, 0)], "work", " tasks")


def test_a_task_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "TIMEOUT", 1)
    with pytest.raises(RunFailed, match="work: no result in 1 seconds; try --workers 1"):
        parallel._run_tasks(2, [partial(time.sleep, 20)] * 2, "work", " tasks")


@pytest.mark.parametrize(("usable", "workers"), [(1, 1), (2, 2), (8, 8), (9, 8), (64, 8)])
def test_there_are_no_more_processes_than_cores_to_use(
    monkeypatch: pytest.MonkeyPatch, usable: int, workers: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(usable)), raising=False)
    assert parallel._default_workers() == workers


@pytest.fixture
def story() -> demo_page.Story:
    """Of 16 pictures whose letter goes through the cells, and poolings that differ in MAP@R alone."""
    shots = Shots(np.zeros((16, 64, 64, 3), np.uint8), np.zeros(16, np.int64), np.arange(16) % 4)
    vectors, weights = np.zeros((16, 2), np.float32), np.full((16, 16), 1 / 16, np.float32)
    results = [
        parallel.Selection(each, 1.0, [Outcome({"MAP@R": 0.1 * number}, vectors, weights, 0.25, each.name, 1.0, 0, [])])
        for number, each in enumerate(CONTESTANTS)
    ]
    return demo_page.Story(results, [], shots, Budget(), 0.0, Table([], []))


def test_the_verdict_says_what_was_measured_and_no_more(story: demo_page.Story) -> None:
    assert demo_page._verdict(story) == (
        "GSP is 10.0 points of MAP@R ahead of average pooling; that is 25% of the way to the oracle, which pools only "
        "the true cell. Learnt attention is 20.0 points of MAP@R ahead of GSP here. This is after 120 steps of "
        "training; docs/results has other runs."
    )


def test_the_true_cell_is_outlined_in_pictures_and_maps(
    story: demo_page.Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(demo_page, "as_bytes", lambda figure, _: drawn.append(figure))
    demo_page.heat_maps(story)
    panels = drawn[0].axes
    assert len(panels) == 8 * (1 + len(CONTESTANTS))
    for number, panel in enumerate(panels):
        cell = story.test.cells[demo_page._spread_out(16, 8)[number % 8]]
        side = panel.images[0].get_array().shape[0]
        left, top = (panel.patches[-1].get_xy()[axis] + 0.5 for axis in (0, 1))
        assert (2 * int(top * 2 // side) + int(left * 2 // side)) == cell
        assert panel.patches[-1].get_width() == pytest.approx(side / 2, rel=0.1)


@pytest.mark.parametrize(("gsp", "said"), [(0.16, "is worth 12.5 points"), (0.03, "costs 0.5 points")])
def test_a_loss_is_not_called_a_gain(gsp: float, said: str) -> None:
    figures = {"rows": [{"name": "GSP", "MAP@R": gsp}, {"name": "average pooling", "MAP@R": 0.035}], "table": ""}
    assert f"Leaving the background out, as GSP does, {said} of MAP@R here." in summarize(figures, Path("demo"))


def test_the_rate_is_chosen_on_held_out_classes_and_never_on_the_test() -> None:
    def outcome(rate: float, seed: int, held_out: float, test: float) -> Outcome:
        nothing = np.zeros((1, 1), np.float32)
        return Outcome({"MAP@R": test}, nothing, nothing, 0.0, "a", rate, seed, [(0, 0.0), (4, held_out)])

    outcomes = [
        outcome(1.0, 0, 0.2, 0.9),
        outcome(1.0, 1, 0.2, 0.9),
        outcome(2.0, 0, 0.1, 0.0),
        outcome(2.0, 1, 0.4, 0.2),
    ]
    chosen = parallel.select_rate(Contestant("a", "average"), outcomes, replace(QUICK, rates=(1.0, 2.0), seeds=(0, 1)))
    assert chosen.rate == 2.0
    assert chosen.mean("MAP@R") == pytest.approx(0.1)
    assert chosen.spread("MAP@R") == pytest.approx(0.2 / 2**0.5)


def test_places_of_a_cell() -> None:
    places = in_cell(np.array([0, 3]), 16).view(2, 4, 4)
    expected = torch.zeros(2, 4, 4, dtype=torch.bool)
    expected[0, :2, :2] = expected[1, 2:, 2:] = True
    assert torch.equal(places, expected)


def test_pictures_are_those_of_the_data_set_and_no_letter_is_in_both_parts() -> None:
    pictures = parallel.create_pictures(QUICK, "train")
    pixels, cells = draw(pictures, 0, 4)
    assert pixels.shape == (4, 64, 64, 3)
    assert [pictures.reader.cell_of(i) for i in range(4)] == cells.tolist()  # type: ignore[attr-defined]
    assert np.array_equal(pixels[2], np.asarray(pictures.image(2)))
    train, test = (set(parallel.create_pictures(QUICK, split).classes) for split in ("train", "test"))
    assert not train & test
