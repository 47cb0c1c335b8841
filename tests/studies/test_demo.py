"""The demo in miniature, and the rules of its race."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lookalike.app import main
from lookalike.studies import demo
from lookalike.studies.glyph_race import CONTESTANTS, Contestant, Outcome, draw, drawing, in_cell


def test_the_whole_story_in_miniature(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--quick", "--out", str(tmp_path), "--workers", "1"]) == 0
    told = capsys.readouterr().out
    for contestant in CONTESTANTS:
        assert contestant.name in told
    assert "the figures mean nothing" in told
    assert "lookalike train my_pictures/" in told
    figures = json.loads((tmp_path / "figures.json").read_text())
    rows = {row["name"]: row for row in figures["rows"]}
    assert list(rows) == [contestant.name for contestant in CONTESTANTS]
    assert rows["oracle, told the true cell"]["weight_on_letter"] == pytest.approx(1)
    assert rows["average pooling"]["weight_on_letter"] == pytest.approx(0.25)
    assert all(0 <= row["MAP@R"] <= 1 for row in rows.values())
    page = (tmp_path / "index.html").read_text()
    assert len(page) < 3e6
    assert len(re.findall(r"<img src=\"data:image/", page)) == 3 + len(CONTESTANTS)
    assert all(f"nearest neighbours under {contestant.name}" in page for contestant in CONTESTANTS)
    for said in ("8 prototypes", "learnt", "10 times the rate", "median length of 0.7", "test classes in view"):
        assert said in page
    assert "also the quarter that is held out" in page
    assert "http" not in re.sub(r"data:image/[^\"]+", "", page).replace("http-equiv", "")


@pytest.mark.parametrize(("gsp", "said"), [(0.16, "is worth 12.5 points"), (0.03, "costs 0.5 points")])
def test_a_loss_is_not_called_a_gain(gsp: float, said: str) -> None:
    figures = {"rows": [{"name": "GSP", "MAP@R": gsp}, {"name": "average pooling", "MAP@R": 0.035}], "table": ""}
    assert f"Leaving the background out, as GSP does, {said} of MAP@R here." in demo.in_words(figures, Path("demo"))


def test_the_rate_is_chosen_on_held_out_classes_and_never_on_the_test() -> None:
    def outcome(rate: float, seed: int, held_out: float, test: float) -> Outcome:
        nothing = np.zeros((1, 1), np.float32)
        return Outcome("a", rate, seed, [(0, 0.0), (4, held_out)], {"MAP@R": test}, nothing, nothing, 0.0)

    outcomes = [
        outcome(1.0, 0, 0.2, 0.9),
        outcome(1.0, 1, 0.2, 0.9),
        outcome(2.0, 0, 0.1, 0.0),
        outcome(2.0, 1, 0.4, 0.2),
    ]
    chosen = demo._chosen(Contestant("a", "average"), outcomes, replace(demo.QUICK, rates=(1.0, 2.0), seeds=(0, 1)))
    assert chosen.rate == 2.0
    assert chosen.mean("MAP@R") == pytest.approx(0.1)
    assert chosen.spread("MAP@R") == pytest.approx(0.2 / 2**0.5)


def test_places_of_a_cell() -> None:
    places = in_cell(np.array([0, 3]), 16).view(2, 4, 4)
    expected = torch.zeros(2, 4, 4, dtype=torch.bool)
    expected[0, :2, :2] = expected[1, 2:, 2:] = True
    assert torch.equal(places, expected)


def test_pictures_are_those_of_the_data_set_and_no_letter_is_in_both_parts() -> None:
    pictures = drawing(demo.QUICK, "train")
    pixels, cells = draw(pictures, 0, 4)
    assert pixels.shape == (4, 64, 64, 3)
    assert [pictures.reader.cell_of(i) for i in range(4)] == cells.tolist()  # type: ignore[attr-defined]
    assert np.array_equal(pixels[2], np.asarray(pictures.image(2)))
    classes = set(drawing(demo.QUICK, "train").classes) & set(drawing(demo.QUICK, "test").classes)
    assert not classes
