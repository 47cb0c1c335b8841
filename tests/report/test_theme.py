"""Plots that can be told apart in grey, are whole, and are the same every time."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lookalike.report.theme import FAINT, as_bytes, figure, save, style, styles, theme


def drawn() -> object:
    with theme():
        plot, [axes] = figure(3, 2)
        axes.bar([0, 1], [1, -2], color=style("gsp").colour, hatch="//")
        axes.set_xticks([0, 1], ["a very long label that reaches far beyond", "another one that does, too"])
        axes.set_title("a title that is much wider than three inches are, and then some more")
    return plot


def test_a_name_has_one_style_everywhere() -> None:
    assert style("gsp") == style("gsp(keep=0.2)")
    assert style("gsp + zero-shot").colour == style("gsp").colour
    assert style("gsp + zero-shot").hatch != style("gsp").hatch
    others = ["attention", "average", "max", "delf", "netvlad", "simpool"]
    assert all(style(name).colour != style("gsp").colour for name in others)


def test_no_two_bars_of_a_plot_are_the_same() -> None:
    names = (
        [f"gsp(keep=0.{i})" for i in range(1, 9)] + [f"pooling{i}" for i in range(12)] + ["gsp + ccp", "gsp + memory"]
    )
    chosen = styles(names)
    assert list(chosen) == names
    assert len({(each.colour, each.hatch) for each in chosen.values()}) == len(names)
    assert chosen["gsp(keep=0.1)"] == style("gsp")


def test_nothing_is_cut_off() -> None:
    pixels = np.asarray(Image.open(io.BytesIO(as_bytes(drawn(), "png"))).convert("L"))
    edges = np.concatenate([pixels[:3].ravel(), pixels[-3:].ravel(), pixels[:, :3].ravel(), pixels[:, -3:].ravel()])
    assert edges.min() == 255
    assert pixels.min() < 100
    assert pixels.shape[1] > 3 * 120  # wider than it was asked to be, since the title is


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_the_same_plot_is_the_same_file(kind: str) -> None:
    assert as_bytes(drawn(), kind) == as_bytes(drawn(), kind)


def test_save_writes_both_and_leaves_the_rules_as_they_were(tmp_path: Path) -> None:
    import matplotlib as mpl

    before = mpl.rcParams["grid.color"]
    paths = save(drawn(), tmp_path / "v0.3")
    assert [path.name for path in paths] == ["v0.3.png", "v0.3.svg"]
    assert paths[1].read_text().startswith("<?xml")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v0.3.png", "v0.3.svg"]
    assert mpl.rcParams["grid.color"] == before != FAINT
