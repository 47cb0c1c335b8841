"""train, calibrate, evaluate and search, as people type them: what a distance means."""

import json
import shutil
from pathlib import Path

import pytest

from lookalike import index
from lookalike.cli import main
from lookalike.retrieval.calibration import FILE, WHOLE_FILE, Calibration

TRAINING = ["--backbone", "resnet8-half", "--start", "random", "--no-freeze-backbone", "--size", "32", "--dim", "8"]
TRAINING += ["--crop", "none", "--steps", "4", "--batch-size", "8", "--per-class", "2", "--evaluate-every", "2"]
TRAINING += ["--workers", "0", "--device", "cpu", "--pooling", "average", "--validation", "0.5"]


@pytest.fixture(scope="module")
def run(class_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "mine"
    assert main(["train", str(class_folders), "--out", str(out), *TRAINING, "--view", "whole"]) == 0
    return out


@pytest.fixture(scope="module")
def indexed(run: Path, class_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("index") / "mine.idx"
    assert main(["index", str(run), str(class_folders), "--out", str(out), "--device", "cpu", "--no-calibrate"]) == 0
    return out


def test_index_calibrates_on_its_labels(
    run: Path, indexed: Path, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Calibration.read(indexed) is None
    labelled = tmp_path / "labelled.idx"
    assert main(["index", str(run), str(class_folders), "--out", str(labelled), "--device", "cpu"]) == 0
    assert "percentages are fitted to the labels of these pictures" in capsys.readouterr().out
    with index.open(indexed) as idx:
        assert Calibration.read(labelled) == index.calibrate(idx)  # as the command
    (indexed / FILE).unlink()
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, file in enumerate(sorted(class_folders.rglob("*.png"))[:30]):
        shutil.copy(file, flat / f"{number}.png")
    for folder, name in ((flat, "flat.idx"), (class_folders / "class1", "small.idx")):  # no labels; too few
        words = ["index", str(run), str(folder), "--out", str(tmp_path / name)]
        assert main([*words, "--device", "cpu", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["calibration"] == "model"


def test_training_calibrates_on_held_out_classes(run: Path, indexed: Path) -> None:
    calibration = Calibration.read(run)
    assert calibration is not None
    assert (calibration.source, calibration.unseen) == ("classes held out from training", True)
    assert (calibration.queries, calibration.classes) == (32, 4)
    assert "What a distance means" in (run / "run.html").read_text(encoding="utf-8")
    whole = Calibration.read(run, WHOLE_FILE)
    assert whole is not None
    assert (whole.source, whole.queries, whole.classes) == (calibration.source, 32, 4)
    assert Calibration.read(indexed / "model") == whole


def test_the_calibration_is_that_of_the_view(run: Path, class_folders: Path, tmp_path: Path) -> None:
    """Also when a run has none for whole pictures, and for an index made with the model of another."""
    words = ["index", str(run), str(class_folders), "--device", "cpu", "--cache", "none"]
    assert main([*words, "--out", str(tmp_path / "crop.idx"), "--view", "crop"]) == 0
    assert Calibration.read(tmp_path / "crop.idx" / "model") == Calibration.read(run)
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / WHOLE_FILE).unlink()
    words[1] = str(tmp_path / "run")
    assert main([*words, "--out", str(tmp_path / "none.idx")]) == 0
    assert Calibration.read(tmp_path / "none.idx" / "model") is None
    assert main(["calibrate", str(tmp_path / "run"), str(class_folders), "--workers", "0"]) == 0
    assert main([*words, "--out", str(tmp_path / "whole.idx")]) == 0
    of_whole = Calibration.read(tmp_path / "whole.idx" / "model")
    assert of_whole == Calibration.read(tmp_path / "run", WHOLE_FILE)
    words[1] = str(tmp_path / "whole.idx" / "model")
    assert main([*words, "--out", str(tmp_path / "copy.idx"), "--view", "whole"]) == 0
    assert Calibration.read(tmp_path / "copy.idx" / "model") == of_whole


def test_evaluate_takes_the_calibration_of_the_view(
    run: Path, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / WHOLE_FILE).unlink()
    words = ["evaluate", str(tmp_path / "run"), str(class_folders), "--workers", "0", "--cache", "none", "--json"]
    for view, has_calibration in (("crop", True), ("whole", False)):
        assert main([*words, "--view", view]) == 0
        figures = json.loads(capsys.readouterr().out)["open_set"]
        assert ("calibration_error" in figures) == has_calibration


def test_a_run_for_crops_has_no_calibration_of_whole_pictures(class_folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "crops"
    assert main(["train", str(class_folders), "--out", str(out), *TRAINING, "--view", "crop"]) == 0
    assert not (out / WHOLE_FILE).exists()
    idx = tmp_path / "crops.idx"
    assert main(["index", str(out), str(class_folders), "--out", str(idx), "--device", "cpu"]) == 0
    assert "cells" not in json.loads((idx / "model" / "model.json").read_text())["input"]


def test_evaluate_says_how_well_it_holds(
    run: Path, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "r.svg"
    words = ["evaluate", str(run), str(class_folders), "--workers", "0"]
    assert main([*words, "--json", "--reliability", str(plot)]) == 0
    figures = json.loads(capsys.readouterr().out)["open_set"]
    assert 0 <= figures["calibration_error"] <= 1
    assert {"AUROC", "FPR@95", "P@1@90", "nothing_said", "nothing_said_rightly"} <= set(figures)
    assert "<svg" in plot.read_text()
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "AUROC" in said
    assert "P(same | distance) is off by" in said


def test_search_shows_probabilities(
    indexed: Path, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(indexed, tmp_path / "own.idx")
    picture = str(class_folders / "class3" / "4.png")
    assert main(["search", str(tmp_path / "own.idx"), picture, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert "a guide" in report["calibration"]
    assert report["calibration"].startswith("calibrated on classes held out from training, 32 pictures of 4 classes")
    assert all(0 < hit["probability"] < 1 for hit in report["hits"])
    assert report["left_out"] == 1
    assert main(["calibrate", str(tmp_path / "own.idx"), "--plot", str(tmp_path / "own.png")]) == 0
    said = capsys.readouterr().out
    assert "calibrated on the labels of this index, 64 pictures of 8 classes" in said
    assert "calibration error" in said
    assert main(["search", str(tmp_path / "own.idx"), picture, "-k", "3"]) == 0
    said = capsys.readouterr().out
    assert said.split()[:4] == ["distance", "the", "same", "label"]
    assert "calibrated on the labels of this index" in said
    assert main(["search", str(tmp_path / "own.idx"), picture, "--confidence", "0.999999"]) == 0
    assert "no picture is the same with a probability of" in capsys.readouterr().out
    assert main(["search", str(tmp_path / "own.idx"), picture, "--error-rate", "0.999999"]) == 0
    assert capsys.readouterr().out.startswith("nothing here looks the same")


def test_examples_groups_and_diversity(indexed: Path, class_folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures = [str(class_folders / f"class{n}" / "4.png") for n in range(4)]
    words = ["search", str(indexed), pictures[0], "--json", "-k", "5"]
    assert main([*words, "--also", f"{pictures[1]},{pictures[2]}", "--unlike", pictures[3], "--group"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["left_out"] == 3
    assert "one whole picture" in report["calibration"]
    assert main([*words, "--diversity", "0.5"]) == 0
    diverse = json.loads(capsys.readouterr().out)["hits"]
    assert main(words) == 0
    assert [hit["id"] for hit in json.loads(capsys.readouterr().out)["hits"]] != [hit["id"] for hit in diverse]


def test_an_explained_search(
    indexed: Path, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["search", str(indexed), str(class_folders / "class3" / "4.png"), "-k", "2", "--explain"]
    assert main([*words, "--json", "--html", str(tmp_path / "e.html")]) == 0
    for hit in json.loads(capsys.readouterr().out)["hits"]:
        assert 1 - hit["distance"] == pytest.approx(hit["match"]["cosine"], abs=1e-5)
        assert sum(map(sum, hit["match"]["matrix"])) == pytest.approx(hit["match"]["cosine"], abs=1e-4)
    assert (tmp_path / "e.html").read_text().count("<img ") == 3
    assert main(words) == 0
    assert capsys.readouterr().out.split()[3:7] == ["label", "regions", "inside", "path"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["search", "IDX", "--unlike", "PICTURE"], "--unlike alone does not say what to look for"),
        (["search", "IDX", "PICTURE", "--confidence", "1"], "confidence must be in (0, 1), got 1"),
        (["search", "IDX", "PICTURE", "--confidence", "-0.5"], "confidence must be in (0, 1), got -0.5"),
        (["search", "IDX", "PICTURE", "--error-rate", "0"], "error_rate must be in (0, 1), got 0"),
        (["search", "IDX", "PICTURE", "--also", "nobody.png"], "there is no picture nobody.png"),
        (["calibrate", "RUN"], "missing DATA"),
        (["calibrate", "IDX", "DATA"], "an index is calibrated on its own labels"),
    ],
)
def test_what_is_refused(
    words: list[str],
    message: str,
    run: Path,
    indexed: Path,
    class_folders: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = {"IDX": indexed, "RUN": run, "DATA": class_folders, "PICTURE": class_folders / "class0" / "0.png"}
    assert main([str(places.get(word, word)) for word in words]) == 2
    assert message in capsys.readouterr().err
