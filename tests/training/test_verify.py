"""Flipped bits in any file of a run or an index are noticed by ``lookalike verify``."""

import json
import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import lookalike
from lookalike import index
from lookalike.cli import main
from lookalike.index.folder import content_stamp

FLIPS = 4  # per file; the places are drawn


@pytest.fixture(scope="module")
def run(class_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps with LIBC, which has every kind of file."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    words = [
        "train",
        str(class_folders),
        "--out",
        str(folder),
        "--backbone",
        "resnet8-half",
        "--dim",
        "8",
        "--steps",
        "2",
    ]
    words += ["--batch-size", "8", "--per-class", "2", "--save-every", "1", "--device", "cpu"]
    assert main([*words, "--pooling", "average", "--no-freeze-backbone", "--workers", "0", "--loss", "libc"]) == 0
    return folder


@pytest.fixture(scope="module")
def idx(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with removed items, an HNSW structure and an uploaded picture."""
    folder = tmp_path_factory.mktemp("indexes") / "idx"
    rng = np.random.default_rng(0)
    with (
        pytest.MonkeyPatch.context() as patched,
        index.create(folder, run, kind="hnsw", engine="openvino") as opened,
    ):
        patched.setattr("lookalike.index.kinds.LEAST", 1)
        items = [index.Item(f"i{n}", f"/pictures/{n}.jpg", f"label {n % 5}", {"year": n}) for n in range(200)]
        opened.add(items, rng.normal(size=(200, opened.dim)))
        opened.delete([f"i{n}" for n in range(20)])
        (folder / "uploads").mkdir()
        file = folder / "uploads" / "up.jpg"
        Image.fromarray(rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(file)
        opened.add([index.Item("up", "")], rng.normal(size=(1, opened.dim)), [content_stamp(file.read_bytes())])
        opened.save()
    return folder


def damaged_parts(path: Path) -> list[str]:
    return [finding.part for finding in lookalike.verify(path) if finding.status == "damaged"]


def content_of(path: Path) -> dict[str, Any]:
    with index.open(path) as opened:
        items = opened.items()
        vectors = opened.vectors([item.id for item in items])
        hits = opened.search(vectors[:3], 5)
        return {"items": items, "vectors": vectors.tolist(), "hits": hits, "labels": opened.labels()}


def flips(file: Path, rng: random.Random, count: int) -> Any:
    """Flip one bit at a time."""
    good = file.read_bytes()
    for position in rng.choices(range(len(good)), k=count):
        content = bytearray(good)
        content[position] ^= 1 << rng.randrange(8)
        file.unlink()  # previous.pt may be the same file
        file.write_bytes(content)
        yield position
    file.write_bytes(good)


def test_every_flipped_bit_of_a_run_is_noticed(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    findings = lookalike.verify(copy)
    assert {finding.status for finding in findings} == {"ok"}, findings
    rng = random.Random(0)
    files = [file for file in sorted(copy.rglob("*")) if file.is_file() and file.stat().st_size > 0]
    names = {file.name.partition(".")[0] for file in files}
    assert names >= {"settings", "data", "metrics", "figures", "model", "messages", "last", "previous", "events"}
    for file in files:
        for position in flips(file, rng, FLIPS):
            assert damaged_parts(copy), f"{file.name}, byte {position}"
    assert not damaged_parts(copy)
    (copy / "settings.yaml").unlink()
    assert damaged_parts(copy) == ["settings.yaml"]


def test_every_flipped_bit_of_an_index_is_noticed(idx: Path, tmp_path: Path) -> None:
    copy = tmp_path / "idx"
    shutil.copytree(idx, copy)
    findings = lookalike.verify(copy)
    assert {finding.status for finding in findings} == {"ok"}, findings
    rng = random.Random(1)
    files = [file for file in sorted(copy.rglob("*")) if file.is_file() and file.stat().st_size > 0]
    assert {"index.json", "items.sqlite", "index.faiss", "up.jpg", "engine.json"} <= {file.name for file in files}
    for file in files:
        if file.name != "items.sqlite":
            for position in flips(file, rng, FLIPS):
                assert damaged_parts(copy), f"{file.name}, byte {position}"
    assert not damaged_parts(copy)


def test_a_flipped_bit_in_the_items_is_noticed_or_changes_nothing(idx: Path, tmp_path: Path) -> None:
    """SQLite's free space and counters in its header may change: then every answer is the same."""
    copy = tmp_path / "idx"
    shutil.copytree(idx, copy)
    expected = content_of(copy)
    unnoticed = 0
    count = 30
    for position in flips(copy / "items.sqlite", random.Random(2), count):
        if not damaged_parts(copy):
            unnoticed += 1
            assert content_of(copy) == expected, position
        for log in copy.glob("items.sqlite-*"):
            log.unlink()
    assert unnoticed < count


def test_damaged_rows_are_left_out(
    idx: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lookalike.index.items._reported", set())
    copy = tmp_path / "idx"
    shutil.copytree(idx, copy)
    with sqlite3.connect(copy / "items.sqlite") as connection:
        connection.execute("UPDATE items SET label = 'label X' WHERE id = 'i30'")
        blob = bytearray(connection.execute("SELECT vector FROM vectors WHERE number = 41").fetchone()[0])
        blob[3] ^= 1
        connection.execute("UPDATE vectors SET vector = ? WHERE number = 41", (bytes(blob),))
    connection.close()
    with index.open(copy) as opened:
        vectors = np.random.default_rng(3).normal(size=(2, opened.dim))
        for where in (None, "year>=0"):
            ids = {hit.item.id for hit in opened.search(vectors, 1000, where)[0]}
            assert len(ids) >= 178
            assert not ids & {"i30", "i40"}
        assert opened.get(["i30"]) == [None]
        with pytest.raises(KeyError):
            opened.vectors(["i40"])
    assert caplog.text.count("the stored item 'i30' is damaged and left out") == 1
    assert caplog.text.count("the stored vector 41 is damaged and left out") == 1
    assert damaged_parts(copy) == ["items.sqlite"]


def test_items_of_earlier_versions(idx: Path, tmp_path: Path) -> None:
    copy = tmp_path / "idx"
    shutil.copytree(idx, copy)
    with sqlite3.connect(copy / "items.sqlite") as connection:
        for table in ("items", "vectors"):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN checksum")
    connection.close()
    assert content_of(copy) == content_of(idx)
    status = {finding.part: finding.status for finding in lookalike.verify(copy)}
    assert status["items.sqlite"] == "no checksum"
    with index.open(copy) as opened:
        opened.restamp({"i30": "new"})
        opened.add([index.Item("i31", "/a.jpg")], np.ones((1, opened.dim)))
        assert opened.stamps(["i30"]) == {"i30": "new"}
        assert opened.count() == 181
    assert not damaged_parts(copy)


def test_the_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    assert main(["verify", str(copy)]) == 0
    assert "ok           settings.yaml\n" in capsys.readouterr().out
    text = (copy / "settings.yaml").read_text()
    (copy / "settings.yaml").write_text(text.replace("seed: 0", "seed: 1"))
    (copy / "mine.txt").write_text("mine")
    assert main(["verify", str(copy), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["damaged"] == 1
    status = {part["part"]: part["status"] for part in report["parts"]}
    assert status["settings.yaml"] == "damaged"
    assert status["mine.txt"] == "no checksum"
    assert main(["train", "--resume", "--out", str(copy)]) == 1
    assert "settings.yaml is damaged, or was edited" in capsys.readouterr().err
    assert main(["verify", str(tmp_path)]) == 2
    assert "is neither a run nor an index" in capsys.readouterr().err
