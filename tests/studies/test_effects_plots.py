"""Colours of the costs of the iteration stand for nothing else, and can be told apart in grey."""

import numpy as np
import pytest
from lookalike_studies.effects import plots as effects_plots
from lookalike_studies.effects.axis import load_axis
from lookalike_studies.effects.iterated import AUTOGRAD, CLOSED_FORM, EXACT, Cost
from lookalike_studies.effects.measured import Measured
from matplotlib.colors import to_hex
from matplotlib.lines import Line2D

from lookalike import pooling
from lookalike.report.theme import COLOURS, FAINT, INK, style


@pytest.fixture(scope="module")
def panels() -> list[dict[str, Line2D]]:
    """The lines of each panel by the way of computing, whatever else their labels say."""
    axis = load_axis("iterations")
    points = axis.points("all")
    figures = 20 + np.random.default_rng(0).normal(size=(len(points), 3))
    of_rounds = [Cost(way, k, 10.0 + k, 12.0 + k) for way in (CLOSED_FORM, AUTOGRAD) for k in (1, 10, 100)]
    drawn = effects_plots.iteration_costs(Measured(axis, points, figures), [Cost(EXACT, 0, 9.0, 11.0), *of_rounds])
    found = []
    for panel in drawn.axes:
        handles, labels = panel.get_legend_handles_labels()
        lines = [each[0] if isinstance(each, tuple) else each for each in handles]  # with its error bars
        ways = [next(way for way in (EXACT, CLOSED_FORM, AUTOGRAD) if way in label) for label in labels]
        found.append(dict(zip(ways, lines, strict=True)))
    return found


def test_all_panels_have_all_ways_in_the_same_colours(panels: list[dict[str, Line2D]]) -> None:
    assert [set(each) for each in panels] == [{EXACT, CLOSED_FORM, AUTOGRAD}] * 3
    for way in (EXACT, CLOSED_FORM, AUTOGRAD):
        assert len({(to_hex(each[way].get_color()), each[way].get_linestyle()) for each in panels}) == 1


def test_gradients_have_colours_of_their_own_and_the_exact_layer_that_of_gsp(panels: list[dict[str, Line2D]]) -> None:
    of_poolings = {style(name).colour.lower() for name in pooling.names()}
    others = {each.lower() for each in (*COLOURS, *effects_plots.OF_METHODS.values(), INK, FAINT)}
    for lines in panels:
        assert to_hex(lines[EXACT].get_color()) == style("gsp").colour.lower()
        own = {to_hex(lines[way].get_color()) for way in (CLOSED_FORM, AUTOGRAD)}
        assert len(own) == 2
        assert not own & (of_poolings | others)


def test_lines_differ_without_colour(panels: list[dict[str, Line2D]]) -> None:
    for lines in panels:
        assert len({line.get_linestyle() for line in lines.values()}) == 3
        assert len({lines[way].get_marker() for way in (CLOSED_FORM, AUTOGRAD)}) == 2
