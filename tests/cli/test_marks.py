"""lookalike marks: list, undo, export and choose, for people and for scripts."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lookalike import data, index
from lookalike.cli import main
from lookalike.index.contents import marked_pictures
from lookalike.index.marks import Marks
from lookalike.inference.model import TrainedModel
from lookalike.models import Embedder, create_backbone


@pytest.fixture
def marked(tmp_path: Path) -> Path:
    """An index of 30 items, with three marks that contradict each other and a fourth."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = create_backbone("resnet8-half", weights="none")
        model = TrainedModel(Embedder(backbone, 8, "average", {}, "l2", backbone.spec.resized(32)))
    vectors = np.random.default_rng(0).normal(size=(30, 8))
    with index.create(tmp_path / "i.idx", model) as idx, Marks(idx.path) as marks:
        stamps = [f"1:0:{i:032x}" for i in range(30)]
        idx.add([index.Item(f"i{i:02d}", f"/p/{i}.jpg", f"c{i % 3}") for i in range(30)], vectors, stamps)
        a, b, c, d = marked_pictures(idx, ["i00", "i01", "i02", "i03"])
        marks.add(a, b, "same", by="anna")
        marks.add(b, c, "same", by="anna")
        marks.add(a, c, "different", by="ben")
        marks.add(a, d, "different")
    return tmp_path / "i.idx"


def call(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main(["marks", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_list_and_undo(marked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = call(capsys, str(marked))
    assert (report["count"], report["pairs"], report["expired"]) == (4, 1, 0)
    assert report["contradictions"] == [{"different": 3, "chain": [1, 2], "marks": [1, 2, 3]}]
    assert [(mark["mark"], mark["state"]) for mark in report["marks"]] == [
        (4, "in force"),
        *((number, "contradictory") for number in (3, 2, 1)),
    ]
    assert main(["marks", str(marked), "--limit", "2"]) == 0
    text = capsys.readouterr().out
    assert "4 marks; 1 pair of pictures to learn from" in text
    assert "mark 3 contradicts 1, 2: undo the wrong one with --undo N" in text
    assert "/p/0.jpg ≠ /p/2.jpg  contradictory by ben" in text
    assert "/p/0.jpg ≠ /p/3.jpg  in force" in text
    assert call(capsys, str(marked), "--undo", "3") == {"undone": 1}
    assert call(capsys, str(marked))["pairs"] == 3
    assert main(["marks", str(marked), "--undo", "3"]) == 0
    assert "mark 3 was undone before" in capsys.readouterr().out


def test_exports(marked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = call(capsys, str(marked), "--csv", str(tmp_path / "m.csv"), "--labels", str(tmp_path / "l.csv"))
    assert (report["marks"], report["pictures"]) == (4, 30)
    rows = list(csv.DictReader((tmp_path / "m.csv").open(newline="")))
    assert [row["state"] for row in rows] == ["contradictory"] * 3 + ["in force"]
    assert len(data.load(str(tmp_path / "l.csv"), check=False)) == 30
    assert main(["marks", str(marked), "--csv", str(tmp_path / "m.csv")]) == 2
    assert "choose another --csv or add --overwrite" in capsys.readouterr().err


def test_next(marked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = call(capsys, str(marked), "--next", "5")
    assert len(report["questions"]) == 5
    assert "no calibration" in report["note"]
    assert {question["probability"] for question in report["questions"]} == {None}
    with index.open(marked) as idx:
        index.calibrate(idx)
    assert all(0 < question["probability"] < 1 for question in call(capsys, str(marked), "--next", "5")["questions"])
    assert main(["marks", str(marked), "--next", "3"]) == 0
    assert capsys.readouterr().out.count("% the same") == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["IDX", "--undo", "99"], "there is no mark 99"),
        (["IDX", "--undo", "1", "--next", "2"], "--undo and --next are for two calls"),
        (["IDX", "--next", "101"], "next"),
        (["nowhere"], "there is no index nowhere"),
    ],
)
def test_bad_input(words: list[str], message: str, marked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["marks", *(word.replace("IDX", str(marked)) for word in words)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
