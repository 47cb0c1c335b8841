"""run.html: the numbers against brute force, and what the page must hold."""

import json
import re
from base64 import b64decode
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lookalike
from lookalike.cli import main
from lookalike.report.held_out import read_held_out
from lookalike.report.run_page import _curves, verdict, write_run_page
from lookalike.report.run_plots import plot_constraint
from lookalike.training.checkpoint import RunFolder

TRAINING = ["--backbone", "resnet8-half", "--size", "32", "--dim", "8", "--crop", "none", "--steps", "4"]
TRAINING += ["--batch-size", "8", "--per-class", "2", "--evaluate-every", "2", "--workers", "0", "--device", "cpu"]


@pytest.fixture(scope="module")
def run(class_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "mine"
    assert main(["train", str(class_folders), "--out", str(out), *TRAINING]) == 0
    return out


def test_neighbours_equal_brute_force(run: Path) -> None:
    held_out = read_held_out(run, RunFolder(run).read_settings())
    assert held_out is not None
    assert (len(held_out.pictures), held_out.unseen, held_out.k) == (16, True, 7)
    files = [held_out.pictures.root / name for name in held_out.pictures.names]  # type: ignore[operator]
    vectors = lookalike.load(run, "cpu").embed(files).astype(np.float64)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    nearest = np.argsort(-cosines, axis=1)[:, :7]
    np.testing.assert_array_equal(held_out.after, nearest)
    labels = held_out.pictures.labels
    right = (labels[nearest] == labels[:, None]).sum(axis=1)
    np.testing.assert_array_equal(held_out.right(held_out.after), right)
    said = f"{right.mean():.1f}".removesuffix(".0")
    assert f"Of the 7 nearest pictures of an unseen class, {said} are right" in held_out.sentence()


def test_the_baseline_is_the_backbone_before_training(run: Path) -> None:
    """P@R of the neighbours before training is what the run measured at its start (R = 7 for every class)."""
    held_out = read_held_out(run, RunFolder(run).read_settings())
    assert held_out is not None
    measured = json.loads((run / "figures.json").read_text())
    assert held_out.right(held_out.before).mean() / 7 == pytest.approx(measured["backbone"]["P@R"])
    assert held_out.right(held_out.after).mean() / 7 == pytest.approx(measured["best"]["P@R"])


def test_the_page_is_whole_and_small(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (run / "run.html").read_text(encoding="utf-8")
    assert "are right" in text
    for title in ("Learning curve", "Neighbours of held-out pictures", "where it looks", "lookalike serve mine.idx"):
        assert title in text
    assert "MAP@R: like P@R" in text
    assert not re.findall(r'(?:src|href)="(?!data:|#)', text), "it loads nothing"
    pictures = re.findall(r"data:image/jpeg;base64,([^\"]+)", text)
    assert len(pictures) > 20
    for content in pictures:
        assert max(Image.open(BytesIO(b64decode(content))).size) <= 120
    assert len(text) < 1_000_000
    assert main(["verify", str(run)]) == 0
    assert "no checksum" not in capsys.readouterr().out
    assert not list(run.glob(".*run.html"))


def test_the_chance_constraint_of_every_problem_is_drawn() -> None:
    first = {"problem": 1, "violation": 0.1, "violation bound": 0.3, "epsilon": 0.2, "epsilon bound": 0.5}
    problems = [first, {**first, "problem": 2, "violation": 0.05}]
    drawn = plot_constraint(problems)
    assert drawn is not None
    lines = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in drawn.axes[0].get_lines()}
    assert lines["violated pairs"] == pytest.approx([10, 5])
    assert lines["violated pairs: Markov bound"] == pytest.approx([30, 30])
    assert lines["epsilon, worst proxy"] == pytest.approx([20, 20])
    assert lines["epsilon, worst proxy: Markov bound"] == pytest.approx([50, 50])
    figures = {"backbone": {}, "best_step": 0}
    assert "Violated pairs by problem" in "".join(_curves([], {**figures, "problems": problems}))
    assert _curves([], figures) == []
    assert plot_constraint([{"problem": 1, "problem best": 0.5}]) is None  # of an earlier version


def test_report_makes_it_again(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (run / "run.html").read_bytes()
    (run / "run.html").unlink()
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out.endswith(f"wrote {run / 'run.html'}\n")
    assert (run / "run.html").read_bytes() == before
    assert main(["report", str(run), "--html", str(tmp_path / "a.html"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["page"] == str(tmp_path / "a.html")
    assert "are right" in report["sentence"]
    assert (tmp_path / "a.html").read_bytes() == before
    assert main(["report", str(run), "--csv", "-"]) == 2
    assert "--csv is for the results of a benchmark" in capsys.readouterr().err


def test_without_its_pictures_the_page_says_so(run: Path, tmp_path: Path) -> None:
    settings = RunFolder(run).read_settings()
    settings.data = str(tmp_path / "gone")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("data.json", "figures.json", "metrics.csv"):
        (copy / name).write_bytes((run / name).read_bytes())
    RunFolder(copy).write_settings(settings)
    notes: list[str] = []
    assert write_run_page(copy, say=notes.append) == ""
    assert "no pictures" in notes[0]
    assert "Learning curve" in (copy / "run.html").read_text(encoding="utf-8")


def test_an_unfinished_run_has_no_page(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "settings.yaml").write_bytes((run / "settings.yaml").read_bytes())
    assert main(["report", str(tmp_path)]) == 2
    assert "is not finished" in capsys.readouterr().err
    assert not (tmp_path / "run.html").exists()


def test_nothing_held_out(class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["train", str(class_folders), "--out", str(out), *TRAINING, "--validation", "0"]) == 0
    assert "next: lookalike evaluate" in capsys.readouterr().out
    assert "Nothing was held out" in (out / "run.html").read_text(encoding="utf-8")


def test_it_is_said_in_plain_words_if_training_gained_nothing() -> None:
    figures = {"monitor": "MAP@R", "backbone": {"MAP@R": 0.5}, "best": {"MAP@R": 0.6}, "best_step": 10}
    assert verdict(figures) == ""
    assert verdict({**figures, "best_step": 0}).startswith("No step was better than the start")
    assert verdict({**figures, "best": {"MAP@R": 0.4}}).startswith("The backbone alone is better")
    assert verdict({**figures, "best": {}}) == ""
