"""lookalike index and lookalike search, as people type them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from lookalike import index
from lookalike.cli import main
from lookalike.cli.index import read_metadata
from lookalike.models import Embedder, create_backbone, save_model


def make_run(folder: Path, seed: int) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = create_backbone("resnet8-half", weights="none")
        save_model(Embedder(backbone, 8, "average", {}, "l2", backbone.spec.resized(32)), folder)
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "mine", 0)


@pytest.fixture(scope="module")
def indexed(run: Path, class_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("index") / "mine.idx"
    assert main(["index", str(run), str(class_folders), "--out", str(out), "--device", "cpu", "--no-calibrate"]) == 0
    return out


def test_index_and_again(run: Path, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(class_folders, tmp_path / "p")
    (tmp_path / "p" / "class0" / "torn.png").write_bytes(b"torn")
    words = ["index", str(run), str(tmp_path / "p"), "--out", str(tmp_path / "my idx")]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "added 64, updated 0, removed 0, unchanged 0" in said
    assert "left out 1 unreadable picture:" in said
    assert "torn.png: not a picture" in said
    assert "has 64 pictures with 8 labels" in said
    assert "search by flat is exact (fewer than 1,000 vectors" in said
    assert f"next: lookalike search '{tmp_path / 'my idx'}'" in said
    (tmp_path / "p" / "class0" / "torn.png").unlink()
    shutil.rmtree(tmp_path / "p" / "class7")
    assert main([*words, "--json", "--store", "faiss"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["added"], report["removed"], report["unchanged"], report["count"]) == (0, 8, 56, 56)
    assert (report["kind"], report["recall@10"], report["labels"]) == ("flat", None, 7)


def test_search(indexed: Path, class_folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = class_folders / "class3" / "4.png"
    assert main(["search", str(indexed), str(picture), "-k", "3", "--include-query"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["distance", "label", "path"]
    assert lines[2].split() == ["0.0000", "class3", str(picture)]
    assert lines[5] == "the nearest of 64 pictures"
    assert lines[6].startswith("no probabilities: neither this index nor its model was calibrated")
    assert len(lines) == 7
    assert main(["search", str(indexed), str(picture), "-k", "3"]) == 0
    without = capsys.readouterr().out.splitlines()
    assert without[2:4] == lines[3:5]
    assert without[6] == "the query itself is in the index and left out (--include-query shows it)"
    assert main(["search", str(indexed), str(picture), "--json", "--k=5", "--where", "label in (class1, class2)"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert len(report["hits"]) == 5
    assert {hit["label"] for hit in report["hits"]} <= {"class1", "class2"}
    assert report["searched"] == 16
    with index.open(indexed) as idx:
        right = idx.search(idx.model("cpu").embed(picture), 5, "label in (class1, class2)")[0]
    assert [hit["id"] for hit in report["hits"]] == [hit.item.id for hit in right]
    assert report["hits"][0]["distance"] == pytest.approx(right[0].distance, abs=1e-6)
    for method in ("expansion", "augmentation", "reciprocal"):
        assert main(["search", str(indexed), str(picture), "-k=4", "--rerank", method]) == 0
        assert f"reordered by {method}" in capsys.readouterr().out
    for where, more in (
        ("label=nobody", ""),
        ("label=Clas3", "no picture has the label Clas3; did you mean class3?\n"),
    ):
        assert main(["search", str(indexed), str(picture), "--where", where]) == 0
        assert capsys.readouterr().out == f"no pictures found: none matches the filter\n{more}"


def test_a_page_in_one_file(
    indexed: Path, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture, page = tmp_path / "<b>&.png", tmp_path / "found.html"
    shutil.copy(class_folders / "class3" / "4.png", picture)
    words = ["search", str(indexed), str(picture), "-k", "6", "--include-query", "--html", str(page)]
    assert main(words) == 0
    assert f"wrote {page}" in capsys.readouterr().out
    text = page.read_text()
    assert text.count("<img ") == 7
    assert text.count('src="data:image/jpeg;base64,') == 7
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert "<b>&" not in text
    assert "1. 0.0000  class3" in text
    assert main(words) == 2
    assert "choose another --html or add --overwrite" in capsys.readouterr().err
    assert main([*words, "--overwrite"]) == 0


def test_metadata(run: Path, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "more.csv"
    table.write_text("path,year,wild,label\nclass0/1.png,2020,true,\nclass1/2.png,2019.5,no,special\n")
    words = ["index", str(run), str(class_folders), "--out", str(tmp_path / "i"), "--metadata", str(table)]
    assert main([*words, "--json"]) == 0
    capsys.readouterr()
    with index.open(tmp_path / "i") as idx:
        assert idx.items("year>2019.5")[0].metadata == {"year": 2020, "wild": True}
        assert idx.items("wild=no")[0].label == "special"
    for text, why in (
        ("file,year\na,1\n", "must have a column path, got file, year"),
        ("path,year\nclass0/1.png\n", "line 2: expected 2 columns"),
        ("path,year\nclass0/1.png,1\nclass0/1.png,2\n", "line 3: class0/1.png is repeated"),
        ("path,year\nclass0/99.png,1\n", "no picture that is in"),
        ("path,my year\nclass0/1.png,1\n", "a key of metadata"),
    ):
        table.write_text(text)
        assert main(words) == 2
        assert why in capsys.readouterr().err


def test_kinds_and_stores(run: Path, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["index", str(run), str(class_folders), "--out", str(tmp_path / "i")]
    assert main([*words, "--kind", "ivf", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["asked"], report["kind"]) == ("ivf", "flat")  # of 64 pictures
    assert main([*words, "--kind", "hnsw", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["asked"] == "hnsw"
    assert main([*words, "--store", "x.db"]) == 2
    assert "cannot move to x.db" in capsys.readouterr().err
    assert main([*words, "--store", "x"]) == 2


def test_recall_is_printed(
    run: Path, class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lookalike.index import kinds

    monkeypatch.setattr(kinds, "LEAST", 50)
    words = ["index", str(run), str(class_folders), "--out", str(tmp_path / "i"), "--kind", "hnsw"]
    assert main(words) == 0
    assert re.search(r"search by hnsw finds \d+\.\d % of the ten nearest", capsys.readouterr().out)


def test_bad_usage(
    run: Path, indexed: Path, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = str(class_folders / "class0" / "0.png")
    (tmp_path / "torn.jpg").write_bytes(b"torn")
    (tmp_path / "empty").mkdir()
    other = make_run(tmp_path / "other", 1)
    for words, code, why in (
        (["index", str(run)], 2, "missing FOLDER"),
        (["index", str(run), "nowhere", "--out", str(tmp_path / "i")], 2, "nowhere is not a folder"),
        (["index", "nowhere", str(class_folders), "--out", str(tmp_path / "i")], 2, "nowhere"),
        (["index", str(run), str(tmp_path / "empty"), "--out", str(tmp_path / "i")], 2, "has no pictures"),
        (["index", str(other), str(class_folders), "--out", str(indexed)], 2, "was made with another model"),
        (["index", str(run), str(class_folders), "--out", str(tmp_path)], 2, "exists and is not an index"),
        (["index", str(run), str(class_folders), "--out", "http://localhost:1"], 2, "add --store http://localhost:1"),
        (["index", str(run), str(class_folders), "--out", str(tmp_path / "i.db")], 2, "for vectors in Milvus"),
        (
            ["index", str(run), str(class_folders), "--out", str(tmp_path / "i"), "--kind", "x"],
            2,
            "kind must be one of",
        ),
        (["search", str(indexed)], 2, "missing PICTURE"),
        (["search", str(tmp_path / "none"), picture], 2, "there is no index"),
        (["search", str(tmp_path), picture], 2, "is no index"),
        (["search", str(indexed), "none.jpg"], 2, "there is no picture none.jpg"),
        (["search", str(indexed), str(tmp_path / "torn.jpg")], 1, "not a picture"),
        (["search", str(indexed), picture, "-k", "0"], 2, "k must be at least 1"),
        (["search", str(indexed), picture, "-k", "many"], 2, "k must be a whole number"),
        (["search", str(indexed), picture, "--where", "label"], 2, "the filter cannot be read"),
        (
            ["search", str(indexed), picture, "--where", "lable=class3"],
            2,
            "no picture of the index has the key lable; did you mean label? There are id, path, label",
        ),
        (
            ["search", str(indexed), picture, "--where", "zzz=1"],
            2,
            "no picture of the index has the key zzz. There are id, path, label",
        ),
        (["search", str(indexed), picture, "--rerank", "twice"], 2, "rerank must be one of"),
    ):
        assert main(words) == code, words
        said = capsys.readouterr().err
        assert why in said, words
        assert len(said.strip().splitlines()) == 1, said
    with index.open(indexed) as idx:
        assert idx.count() == 64
    assert not (tmp_path / "i").exists()


@pytest.mark.slow
def test_a_killed_build_goes_on(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures, out = tmp_path / "many", tmp_path / "i"
    for n in range(1000):
        (pictures / f"class{n % 8}").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (n % 256, n // 4, 7 * n % 256)).save(pictures / f"class{n % 8}" / f"{n}.png")
    words = ["index", str(run), str(pictures), "--out", str(out), "--batch", "1", "--device", "cpu", "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "lookalike", *words]
    process: Any = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    while process.poll() is None and not count(out):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert process.returncode == -signal.SIGKILL
    assert 0 < count(out) < 1000
    done = count(out)
    words[words.index("--batch") + 1] = "64"
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["unchanged"] == done
    assert report["added"] == 1000 - done
    assert report["count"] == 1000


def count(path: Path) -> int:
    if not (path / "index.json").exists():
        return 0
    with index.open(path) as idx:
        return idx.count()


def test_milvus_from_the_command_line(
    run: Path, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("milvus_lite", reason="NOT TESTED: Milvus is not installed")
    picture = str(class_folders / "class3" / "4.png")
    hits = []
    for name, store in (("f", "faiss"), ("m", str(tmp_path / "x.db"))):
        words = ["index", str(run), str(class_folders / "class3"), "--out", str(tmp_path / name), "--store", store]
        assert main(words) == 0
        assert main([*words, "--json"]) == 0
        assert json.loads(capsys.readouterr().out.splitlines()[-1])["unchanged"] == 8
        assert main(["search", str(tmp_path / name), picture, "-k", "5", "--json"]) == 0
        hits.append(json.loads(capsys.readouterr().out)["hits"])
    assert hits[0] == hits[1]
    assert main(["search", str(tmp_path / "m"), picture, "--where", "lable=class3", "--json"]) == 2
    assert "has the key lable; did you mean label?" in capsys.readouterr().err
    # the items' own place is not the index
    assert main(["search", str(tmp_path / "x.db"), picture]) == 2
    assert f"it holds the items of the index {tmp_path / 'm'}: give that instead" in capsys.readouterr().err


def test_cells_become_numbers_only_in_plain_digits(tmp_path: Path) -> None:
    cells = [
        "12",
        "-3",
        "1.5",
        "1e3",
        ".5",
        "1_000",
        "\u0663",
        "nan",
        "inf",
        "1e999",
        "0x10",
        " 7",
        "9" * 30,
        "=1+1",
        "TRUE",
    ]
    rows = "".join(f"{i}.jpg,{cell}\n" for i, cell in enumerate(cells))
    (tmp_path / "m.csv").write_text("path,v\n" + rows, encoding="utf-8")
    values = [row["v"] for row in read_metadata(tmp_path / "m.csv").values()]
    assert values == [12, -3, 1.5, 1000.0, 0.5, *cells[5:14], True]


def test_index_without_run_or_labels(
    class_folders: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flat = tmp_path / "flat"
    flat.mkdir()
    for number, file in enumerate(sorted(class_folders.rglob("*.png"))[:6]):
        shutil.copy(file, flat / f"{number}.png")
    words = ["index", str(flat), "--out", str(tmp_path / "flat.idx"), "--device", "cpu", "--cache", "none"]
    assert main([*words, "--size", "32"]) == 0
    assert "flat.idx has 6 pictures without labels" in capsys.readouterr().out
    with index.open(tmp_path / "flat.idx") as idx:
        assert idx.about.run == "efficientnet_lite0, whitening head"
        files = [item.file for item in idx.items()]
        vectors = idx.vectors([item.id for item in idx.items()])
        assert (idx.model("cpu").embed(files) == vectors).all()
    shutil.copy(flat / "0.png", flat / "new.png")
    assert main([*words, "--json"]) == 0  # with the model of the index
    report = json.loads(capsys.readouterr().out)
    assert (report["added"], report["unchanged"], report["labels"]) == (1, 6, 0)
    assert main(["index", str(run), str(flat), "--out", str(tmp_path / "flat.idx")]) == 2
    said = capsys.readouterr().err
    assert "efficientnet_lite0, whitening head" in said
    assert str(run) in said


def test_backbone_with_weights_from_a_run(
    class_folders: Path, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = ["--weights", str(run), "--size", "32", "--device", "cpu"]
    out = ["--out", str(tmp_path / "b.idx")]
    assert main(["index", "resnet8-half", str(class_folders), *out, *weights]) == 0
    assert main(["evaluate", "resnet8-half", str(class_folders), *weights]) == 0
    assert main(["embed", "resnet8-half", str(class_folders), "--out", str(tmp_path / "v.npy"), *weights]) == 0
    capsys.readouterr()
    for command in ("index", "evaluate", "embed"):
        words = [command, "resnet50", str(class_folders)]
        if command != "evaluate":
            words += ["--out", str(tmp_path / "x.npy")]
        assert main(words) == 2
        assert "set --weights to timm to download them" in capsys.readouterr().err
    assert main(["index", str(run), str(class_folders), *out, "--weights", "timm"]) == 2
    assert "--weights is for a backbone given by name" in capsys.readouterr().err
    assert main(["index", str(run), str(class_folders), *out, "--whiten"]) == 2
    assert "has its own head" in capsys.readouterr().err


def test_prune_and_remove(run: Path, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pictures, idx = tmp_path / "p", str(tmp_path / "p.idx")
    shutil.copytree(class_folders, pictures)
    assert main(["index", str(run), str(pictures), "--out", idx]) == 0
    (pictures / "class0" / "0.png").unlink()
    (pictures / "class1").rename(pictures / "renamed")
    capsys.readouterr()
    assert main(["index", str(pictures), "--out", idx, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["moved"], report["removed"], report["added"]) == (8, 1, 0)
    (pictures / "class0" / "1.png").unlink()
    assert main(["search", idx, str(class_folders / "class0" / "1.png"), "-k", "1", "--include-query"]) == 0
    assert capsys.readouterr().out.splitlines()[2].endswith("1.png (the file is missing)")
    assert main(["index", idx, "--prune"]) == 0
    assert "removed 1 picture; " in capsys.readouterr().out
    assert main(["index", idx, "--remove", "*/renamed/*", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["count"] == 54
    assert main(["index", idx, "--remove", "*.gif"]) == 2
    assert main(["index", str(run), str(pictures), "--out", idx, "--prune"]) == 2
    assert "lookalike index IDX --prune" in capsys.readouterr().err
