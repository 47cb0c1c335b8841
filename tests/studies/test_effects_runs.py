"""What the models of an axis are trained with, what is said of it, and how lines are told apart."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lookalike_studies.effects import plots as effects_plots
from lookalike_studies.effects import runs as effects_runs
from lookalike_studies.effects import study as effects
from lookalike_studies.effects.axis import axes, load_axis
from lookalike_studies.effects.measured import Measured

from lookalike.cli import main
from lookalike.experiments.plan import load_sources
from lookalike.experiments.runner import Progress
from lookalike.report.theme import style

SMALL = "glyphs(cells=1, size=32, train_classes=12, test_classes=4, per_class=4)"


def test_what_differs_from_the_papers_protocol_is_named_with_both_values() -> None:
    settings, sources = effects.STUDY.load_settings("quick", {"protocol": "quick"}), load_sources([SMALL])
    along = {name: load_axis(name) for name in ("keep", "iterations", "alternating")}
    with effects.iterated.registered():
        rows = {name: effects_runs.rows_for(axis, settings, sources, "", {}) for name, axis in along.items()}
        found = effects_runs.differences(along, rows, sources, "some")
    assert list(found) == [
        "keep, iterations (protocol quick, the papers' is tuning)",  # which differ alike
        "alternating (protocol quick, the papers' is ablation)",
    ]
    keep, alternating = found.values()
    assert keep["backbone"] == ("bn_inception", "efficientnet_lite0")
    assert keep["freeze_backbone"] == (False, True)
    assert keep["size"] == (227, "decided at the start")
    assert keep["lr"] == (1e-5, "decided at the start")
    assert keep["folds"] == (5, 4)
    assert keep["patience"] == (10, "no end but the last step")
    assert keep["pooling_settings.init"] == ("k-centre-released", "none")
    assert keep["models of a point"] == (3, 2)
    assert not {"seed", "data", "dim", "pooling_settings.keep", "loss"} & set(keep)
    assert "ccp_patience" not in alternating
    assert alternating["evaluate_every"] == (25, 10)


def test_nothing_differs_where_the_papers_protocol_is_kept() -> None:
    settings, sources, along = effects.STUDY.load_settings("full"), load_sources([SMALL]), {"keep": load_axis("keep")}
    rows = {"keep": effects_runs.rows_for(along["keep"], settings, sources, "", {})}
    assert effects_runs.differences(along, rows, sources, "all") == {}


BUDGET = {"steps", "evaluate_every"}


@pytest.mark.parametrize("name", axes())
def test_quick_lowers_steps_points_and_models_and_nothing_else(name: str) -> None:
    sources, axis, made = load_sources([SMALL]), load_axis(name), effects.STUDY.read_yaml()["of_drawn"]
    with effects.iterated.registered():
        quick, full = (
            effects_runs.rows_for(axis, effects.STUDY.load_settings(scale), sources, "runs/letters", made)
            for scale in ("quick", "full")
        )
    known = {str(point): full.cells[number] for number, point in enumerate(axis.points("all"))}
    refused = {str(point) for point, _ in full.impossible}
    for number, point in enumerate(axis.points("some")):
        if str(point) in refused:  # 128 directions of a network with 64
            assert not quick.cells[number]
            continue
        other = known[str(point)][0]
        assert len(quick.cells[number]) == 2  # the papers' protocols say 1 to 12
        for mine in quick.cells[number]:
            assert (mine.protocol, mine.pooling, mine.methods) == (other.protocol, other.pooling, other.methods)
            here, there = asdict(mine.settings), asdict(other.settings)
            delays = [values["pooling_settings"].pop("delay", 0) for values in (here, there)]
            assert delays[0] * there["evaluate_every"] == delays[1] * here["evaluate_every"]
            assert {key for key in here if here[key] != there[key]} <= BUDGET | {"seed", "validation"}


def test_no_network_waits_until_few_steps_are_over() -> None:
    made = effects.STUDY.read_yaml()["of_drawn"]
    cell, _ = effects_runs.single_letters(SMALL, made["set"], 20)
    assert cell.settings.warm_up == 0
    sources, axis = load_sources([SMALL]), load_axis("prototypes")
    rows = effects_runs.rows_for(axis, effects.STUDY.load_settings("quick"), sources, "runs/letters", made)
    settings = [cell.settings for cells in rows.cells.values() for cell in cells]
    assert "proxy-nca++" in {each.loss for each in settings}  # whose network waits in the papers
    assert {each.warm_up for each in settings} == {0}
    assert {(each.size, each.resize) for each in settings} == {(32, 32)}  # the whole picture, not the middle of it


def test_other_seeds_are_other_models() -> None:
    sources, axis = load_sources([SMALL]), load_axis("keep")
    rows = (
        effects_runs.rows_for(axis, effects.STUDY.load_settings("quick", {"first_seed": first}), sources, "", {})
        for first in (0, 10)
    )
    one, other = ([cell for cells in each.cells.values() for cell in cells] for each in rows)
    assert [cell.settings.seed + 10 for cell in one] == [cell.settings.seed for cell in other]
    assert not {cell.key for cell in one} & {cell.key for cell in other}


def test_it_is_a_failure_where_every_model_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_cells(cells: Any, *_: Any, **__: Any) -> Progress:
        is_letters = cells[0].protocol == "letters"
        return Progress(done=cells) if is_letters else Progress(failed=[(cell, "no memory") for cell in cells])

    monkeypatch.setattr(effects, "run_cells", run_cells)
    assert main(["study", "effects", "--miniature", "--out", str(tmp_path), "--set", "axis=keep"]) == 1
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith("lookalike study: every model failed: keep: failed: ")
    assert said.endswith("no memory\n")
    assert "Not as in the papers: keep (protocol tuning): " in said


def test_an_axis_of_which_nothing_is_left_is_refused_before_the_letters_are_learnt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = "axis=keep, set='loss_settings={nosuch: 1}'"
    assert main(["study", "effects", "--miniature", "--out", str(tmp_path), "--set", changes]) == 2
    said = capsys.readouterr().err
    assert "no point of the axis keep can be trained" in said
    assert "letters:" not in said
    assert not (tmp_path / "benchmark").exists()


def styles_of(name: str) -> dict[str, Any]:
    axis = load_axis(name)
    points = axis.points("all")
    m = Measured(axis, points, np.zeros((len(points), 2)))
    return effects_plots._styles_of(m, effects_plots._groups(m))


@pytest.mark.parametrize("axis", ["keep", "prototypes"])
def test_gsp_with_the_zero_shot_loss_looks_as_everywhere(axis: str) -> None:
    usual = style("gsp + zero-shot")
    found = [each for name, each in styles_of(axis).items() if name.endswith("GSP")]
    assert {(each.colour, each.line) for each in found} == {(usual.colour, usual.line)}
    assert len({each.marker for each in found}) == len(found)


def test_ccp_has_one_colour_and_what_differs_is_told_by_more_than_it() -> None:
    colours = {each.colour for axis in ("batch-size", "pool-proxies") for name, each in styles_of(axis).items()
               if "CCP" in name}  # fmt: skip
    assert colours == {effects_plots.OF_METHODS["ccp"]}
    assert style("average").colour not in colours
    for axis in ("batch-size", "pool-proxies", "embedding-size"):
        shapes = [(each.marker, each.line) for each in styles_of(axis).values()]
        assert len(set(shapes)) == len(shapes)
