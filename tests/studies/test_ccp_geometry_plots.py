"""The figures have all that there is, in colours of their own."""

import pytest
from lookalike_studies.ccp_geometry import plots as ccp_geometry_plots
from lookalike_studies.ccp_geometry import study as ccp_geometry
from lookalike_studies.ccp_geometry.measures import Gap
from lookalike_studies.ccp_geometry.plots import draw_gap, draw_plane, draw_problems, draw_unseen
from lookalike_studies.ccp_geometry.race import ALTERNATING, ONE, SAMPLES, Course
from lookalike_studies.effects import plots as effects_plots
from small_ccp_race import PARTS, run_with

from lookalike.report.theme import style


def test_figures_have_all_that_there_is(courses: dict[str, list[Course]]) -> None:
    labels, names = PARTS.validation.labels, list("abcd")
    shown = draw_plane(courses, labels, names)
    assert sum(bool(axis.get_title()) for axis in shown.axes) == 1 + min(5, len(courses[ALTERNATING][0].snapshots))
    curves, cover, pool = draw_problems(courses, labels).axes
    assert len(cover.get_lines()) == 3
    assert len(pool.get_lines()) == 4
    assert curves.get_xlabel() == "steps"
    gaps = ccp_geometry.all_gaps(courses, PARTS, ccp_geometry.STUDY.load_settings("miniature"))
    assert [len(gaps["proxies", kind][0]) for kind in (ONE, ALTERNATING)] == [
        *(1, len(courses[ALTERNATING][0].snapshots))
    ]
    assert draw_gap(gaps).axes[0].get_ylabel() == "loss gap"
    measured = {kind: [run_with(0.5)] for kind in (ONE, ALTERNATING)}
    unseen = draw_unseen({kind: courses[kind] for kind in measured}, labels, measured)
    assert "MAP@R 50.0" in unseen.axes[1].get_title()


def test_colours_of_kinds_are_those_of_effects(courses: dict[str, list[Course]]) -> None:
    colours = [ccp_geometry_plots.STYLES[kind].colour for kind in (ONE, ALTERNATING, SAMPLES)]
    assert colours == ["#F0E442", "#009E73", "#CC79A7"]
    assert colours[1] == effects_plots.OF_METHODS["ccp"]
    assert len({ccp_geometry_plots.STYLES[kind].marker for kind in courses}) == 3
    _, cover, _ = draw_problems(courses, PARTS.validation.labels).axes
    used = {line.get_markerfacecolor() for line in cover.get_lines()} | {line.get_color() for line in cover.get_lines()}
    assert used == {*colours, "#8a6d00"}  # the line of the yellow markers
    assert not used & {style(name).colour for name in ("gsp", "attention", "average")}


@pytest.mark.parametrize("widest", [0.4, 0.9, 30.0])
def test_ticks_of_the_gap_are_few_and_plain(widest: float) -> None:
    drawn = draw_gap({("random", ONE): [[Gap(0.3, 0.02, 0.002), Gap(widest, 0.3, 0.2)]]})
    drawn.draw_without_rendering()
    for panel in drawn.axes:
        low, high = panel.get_xlim()
        told = [each.get_text() for each in panel.get_xticklabels() if low <= each.get_position()[0] <= high]
        assert 1 <= len(told) <= 6
        assert all(float(each) in (0.1, 0.2, 0.5, 1, 2, 5, 10) for each in told)
        assert not [each.get_text() for each in panel.get_xticklabels(minor=True) if each.get_text()]
