"""The doctor finds what was put in, writes what was decided, and changes no picture."""

import csv
import json
import shutil
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from lookalike import data, index
from lookalike.cli import main
from lookalike.doctor import Examination, Fix, apply_fixes, examine, read_fixes, suggested_fixes, write_findings
from lookalike.doctor.of_index import load_index, records_of
from lookalike.inference.model import untrained

CLASSES, EACH = 3, 6
TORCH = ["--engine", "torch"]  # a conversion takes longer than these few pictures


def photo(label: int, number: int) -> Image.Image:
    """A smooth random picture; those of a class share their colours."""
    rng = np.random.default_rng([label, number])
    coarse = rng.integers(0, 60, (5, 7, 3))
    coarse[..., label % 3] += 150
    return Image.fromarray(coarse.astype(np.uint8)).resize((120, 90), Image.Resampling.BICUBIC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "pictures"
    for label in range(CLASSES):
        (root / f"class{label}").mkdir(parents=True)
        for number in range(EACH):
            photo(label, number).save(root / f"class{label}" / f"{number}.png")
    return root


def examined(folder: Path) -> Examination:
    """Vectors are the mean colours of quarters, near which the classes are apart."""
    pictures = data.load(folder)
    vectors = [np.asarray(pictures.image(i).resize((2, 2)), np.float64).ravel() for i in range(len(pictures))]
    return examine(pictures, np.array(vectors))


def of_kind(examination: Examination, kind: str) -> dict[str, Any]:
    return {finding.name: finding for finding in examination.findings if finding.kind == kind}


def test_clean_data_have_no_duplicates_and_no_doubtful_labels(folder: Path) -> None:
    assert set(examined(folder).counts()) <= {"outlier"}


def test_copies_are_found_whatever_was_done_to_them(folder: Path) -> None:
    shutil.copy(folder / "class0" / "0.png", folder / "class1" / "same.png")
    original = Image.open(folder / "class0" / "1.png")
    original.resize((60, 45)).save(folder / "class0" / "small.png")
    ImageOps.mirror(original).save(folder / "class0" / "mirrored.png")
    file = BytesIO()
    original.save(file, "JPEG", quality=30)
    (folder / "class2" / "poor.jpg").write_bytes(file.getvalue())
    examination = examined(folder)
    [exact] = of_kind(examination, "exact duplicate").values()
    assert (exact.name, exact.action) == ("class1/same.png", "drop")
    assert exact.reason == "the same as class0/0.png, which is labelled class0"
    near = of_kind(examination, "near duplicate")
    assert set(near) == {"class0/small.png", "class0/mirrored.png", "class2/poor.jpg"}
    assert "class0/1.png" in near["class0/mirrored.png"].reason or "small" in near["class0/mirrored.png"].reason


def test_broken_tiny_and_few_are_listed(folder: Path) -> None:
    (folder / "class0" / "torn.png").write_bytes((folder / "class0" / "0.png").read_bytes()[:200])
    (folder / "rare").mkdir()
    photo(5, 0).resize((20, 15)).save(folder / "rare" / "0.png")
    photo(5, 1).save(folder / "rare" / "1.png")
    examination = examined(folder)
    assert set(of_kind(examination, "broken")) == {"class0/torn.png"}
    assert of_kind(examination, "tiny")["rare/0.png"].reason == "20 x 15 pixels"
    few = of_kind(examination, "few pictures")["rare"]
    assert few.reason == "only 2 pictures; 5 or more are better"
    assert [examination.pictures.names[i] for i in few.shown] == ["rare/0.png", "rare/1.png"]


def test_a_wrong_label_is_found_decided_and_corrected(folder: Path, tmp_path: Path) -> None:
    (folder / "class0" / "3.png").rename(folder / "class2" / "stray.png")
    examination = examined(folder)
    finding = of_kind(examination, "doubtful label")["class2/stray.png"]
    assert finding.new_label == "class0"
    assert finding.action == "relabel"
    assert examination.pictures.names[finding.partner].startswith("class0/")
    file = tmp_path / "findings.csv"
    write_findings(examination, file, confidence=0.5)
    fixes = read_fixes(file)
    assert Fix("class2/stray.png", "relabel", "class0") in fixes
    corrected = apply_fixes(examination.pictures, fixes)
    position = examination.pictures.names.index("class2/stray.png")
    assert corrected.labels[corrected.positions.tolist().index(position)] == "class0"
    unsure = replace(finding, score=0.6)
    assert [fix.action for fix in suggested_fixes(replace(examination, findings=[unsure]), 0.5)] == ["relabel"]
    assert not suggested_fixes(replace(examination, findings=[unsure]), 0.9)


def test_the_command_writes_what_train_reads_and_leaves_the_pictures(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(folder / "class0" / "0.png", folder / "class1" / "same.png")
    before = {file: file.read_bytes() for file in folder.rglob("*.png")}
    out = tmp_path / "out"
    assert main(["doctor", str(folder), "--out", str(out), "--json", "--workers", "0", *TORCH]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["findings"]["exact duplicate"] == 1
    assert set(report["MAP@R"]) == {"before", "after", "queries"}
    assert before == {file: file.read_bytes() for file in folder.rglob("*.png")}
    corrected = data.load(out / "corrected.csv")
    assert not any(name.endswith("same.png") for name in corrected.names)
    page = (out / "doctor.html").read_text()
    assert "The same file twice (1)" in page
    with (out / "findings.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["action"] = "keep"
    with (out / "edited.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    fixing = ["doctor", str(folder), "--out", str(out), "--fixes", str(out / "edited.csv"), "--json"]
    capsys.readouterr()
    assert main(fixing) == 0
    assert len(data.load(out / "corrected.csv")) == CLASSES * EACH + 1
    effect = json.loads(capsys.readouterr().out)["MAP@R"]  # measured with the vectors of the examination
    assert effect["before"] == effect["after"] == report["MAP@R"]["before"]
    assert sum(finding["kind"] == "few pictures" for finding in rows) == 0


def test_an_index_has_pictures_without_labels_splits_and_missing_files(folder: Path, tmp_path: Path) -> None:
    shutil.copy(folder / "class0" / "0.png", folder / "class0" / "z.png")
    files = sorted(folder.rglob("*.png"))
    path = tmp_path / "pictures.idx"
    model = untrained("efficientnet_lite0", device="cpu")
    with index.create(path, model) as idx:
        for file in files:
            label = "" if file.parent.name == "class2" else file.parent.name
            split = "test" if file.name == "z.png" else "train"
            vector = np.eye(model.dim)[int(file.parent.name[-1])] + np.eye(model.dim)[10 + files.index(file)] / 9
            idx.add([index.file_item(file, label=label, metadata={"split": split})], vector[None])
        (folder / "class1" / "5.png").unlink()
        loaded = load_index(idx)
        examination = examine(loaded.pictures, loaded.vectors)
        examination.findings[:0] = loaded.changed
        records = records_of(examination, loaded.items, 0.9)
    [twice] = [record for record in records if record.kind == "exact duplicate"]
    assert twice.reason in (
        "the same as 0.png, which is in train; this one is in test",
        "the same as z.png, which is in test; this one is in train",
    )
    [missing] = [record for record in records if record.kind == "broken"]
    assert missing.reason == "no such file"
    assert not [record for record in records if record.kind in ("doubtful label", "confused classes", "few pictures")]
    assert main(["doctor", str(path), "--out", str(tmp_path / "out")]) == 0
    assert "no such file" in (tmp_path / "out" / "findings.csv").read_text()
    assert not (path / "doctor.json").exists()  # with --out the index stays as it is


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("path\nclass0/0.png\n", "has no column action"),
        ("action,path\nburn,class0/0.png\n", "line 2: action must be one of keep, drop, relabel, got 'burn'"),
        ("action,path\ndrop,class0/nothing.png\n", "there is no picture 'class0/nothing.png'"),
        ("action,path,new_label\nrelabel,class0/0.png,\n", "relabel needs a new_label"),
    ],
)
def test_bad_decisions_are_refused_in_one_line(
    folder: Path, tmp_path: Path, content: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fixes.csv").write_text(content)
    assert main(["doctor", str(folder), "--out", str(tmp_path / "out"), "--fixes", str(tmp_path / "fixes.csv")]) != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out" / "corrected.csv").exists()
