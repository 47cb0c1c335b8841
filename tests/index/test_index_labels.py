"""Labels edited in place, against a plain dictionary; then what sync, training, kills and bad input make of them."""

import csv
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_helpers import DIM, draw
from PIL import Image
from test_killed_writer import killed_while

from lookalike import data, index
from lookalike._util.checksums import Finding
from lookalike.index import labels as labels_module
from lookalike.index.labels import Labels
from lookalike.index.labels_file import LabelsFile
from lookalike.index.storage import OutdatedIndex
from lookalike.index.verify import verify_index
from lookalike.inference.model import TrainedModel

NAMES = ["robin", "wren", "finch", '"a", (b)=\\c']


@pytest.fixture(params=["faiss", "milvus"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "milvus":
        pytest.importorskip("milvus_lite", reason="NOT TESTED: Milvus is not installed")
        return str(tmp_path / "x.db")
    return str(request.param)


def labels_of(idx: index.Index) -> dict[str, tuple[str, dict[str, Any]]]:
    return {item.id: (item.label, item.metadata) for item in idx.items()}


def test_equal_a_plain_dictionary(store: str, model: TrainedModel, tmp_path: Path) -> None:
    """Random edits and undoings; labels, metadata, vectors and the table stay those of a plain dictionary."""
    rng = np.random.default_rng(0)
    ids = [f"i{i}" for i in range(8)]
    vectors = draw(8)
    plain: dict[str, tuple[str, dict[str, Any]]] = {i: (NAMES[n % 4], {"n": n}) for n, i in enumerate(ids)}
    history: list[dict[str, tuple[Any, Any]]] = []  # what each edit changed, before and after
    numbers: list[int] = []
    with index.create(tmp_path / "i", model, store=store) as idx, Labels(idx) as labels:
        idx.add([index.Item(i, f"/p/{i}.jpg", *plain[i]) for i in ids], vectors)
        for step in range(60 if store == "faiss" else 15):
            kind = step % 5
            new = dict(plain)
            if kind == 0:
                chosen = rng.choice(ids, 3, replace=False).tolist()
                label = str(rng.choice([*NAMES, ""]))
                new.update({i: (label, plain[i][1]) for i in chosen})
                edited = labels.set_label(chosen, f" {label} ", by="anna")
            elif kind == 1:
                new[ids[step % 8]] = (plain[ids[step % 8]][0], {"step": step})
                edited = labels.set_metadata(ids[step % 8], {"step": step})
            elif kind in (2, 3):
                present = sorted({label for label, _ in plain.values()} - {""})
                old, into = rng.choice(present), f"new {step}" if kind == 2 else str(rng.choice(NAMES))
                new = {i: (into if label == old else label, metadata) for i, (label, metadata) in plain.items()}
                edited = labels.rename(old, into) if kind == 2 else labels.merge([old], into)
            else:
                place = int(rng.integers(len(numbers)))
                changes = {i: was for i, (was, became) in history[place].items() if plain[i] == became}
                new.update(changes)
                try:
                    edited = labels.undo(numbers[place])
                except ValueError:
                    assert labels_of(idx) == plain
                    continue
                assert (edited.changed, edited.skipped) == (len(changes), len(history[place]) - len(changes))
            difference = {i: (plain[i], new[i]) for i in ids if plain[i] != new[i]}
            assert edited.changed == len(difference)
            if difference:
                numbers.append(edited.number)
                history.append(difference)
            plain = new
            assert labels_of(idx) == plain
        np.testing.assert_array_equal(idx.vectors(ids), vectors)
        rows = list(csv.DictReader((idx.path / "labels.csv").open(newline="")))
        named = {f"/p/{i}.jpg": label for i, (label, _) in plain.items() if label}
        assert {row["path"]: row["label"] for row in rows} == named
        summaries = labels.history(1000)
        assert [summary.edit.batch for summary in summaries] == numbers[::-1]
        assert [summary.pictures for summary in summaries] == [len(changes) for changes in history[::-1]]


def test_undo_and_redo(model: TrainedModel, tmp_path: Path) -> None:
    with index.create(tmp_path / "i", model) as idx, Labels(idx) as labels:
        idx.add([index.Item("a", "/a", "robin"), index.Item("b", "/b", "wren")], draw(2))
        first = labels.set_label(["a", "b"], "finch", by="anna")
        labels.set_label(["b"], "tit", by="ben")
        undone = labels.undo(first.number, by="ben")
        assert (undone.changed, undone.skipped) == (1, 1)  # ben's later label stays
        assert {i: label for i, (label, _) in labels_of(idx).items()} == {"a": "robin", "b": "tit"}
        with pytest.raises(ValueError, match=r"edit 1 is undone already"):
            labels.undo(first.number)
        labels.undo(undone.number)  # redo
        assert labels_of(idx)["a"][0] == "finch"
        assert [(s.edit.action, s.edit.by, s.undone) for s in labels.history()] == [
            ("undo", "", False),
            ("undo", "ben", True),
            ("label", "ben", False),
            ("label", "anna", False),
        ]
        assert labels.set_label(["a"], "finch") == (0, 0, 0)
        labels.set_label(["b"], "x")
        with pytest.raises(ValueError, match="cannot be undone: its pictures were changed or deleted since"):
            labels.undo(3)


def test_bad_input(model: TrainedModel, tmp_path: Path) -> None:
    with index.create(tmp_path / "i", model) as idx, Labels(idx) as labels:
        idx.add([index.Item("a", "/a", "robin"), index.Item("b", "/b", "wren")], draw(2))
        with pytest.raises(KeyError, match="there is no item c"):
            labels.set_label(["a", "c"], "finch")
        with pytest.raises(ValueError, match="no picture has the label 'robbin' \\(did you mean 'robin'"):
            labels.rename("robbin", "finch")
        with pytest.raises(ValueError, match="the label 'wren' exists: merge the two"):
            labels.rename("robin", "wren")
        with pytest.raises(ValueError, match="the new label is empty"):
            labels.rename("robin", " ")
        with pytest.raises(ValueError, match="at most 4,096 bytes"):
            labels.set_label(["a"], "x" * 5000)
        with pytest.raises(ValueError, match="a key of metadata"):
            labels.set_metadata("a", {"path": 1})
        with pytest.raises(ValueError, match="by must be a printable text"):
            labels.set_label(["a"], "x", by="\n")
        with pytest.raises(KeyError, match="there is no edit 1"):
            labels.undo(1)
        assert labels.history() == []
        assert labels_of(idx) == {"a": ("robin", {}), "b": ("wren", {})}


def test_an_edited_label_stays_and_trains(model: TrainedModel, tmp_path: Path) -> None:
    """Another sync of the folder keeps it, an undo gives the class folder its say again, and train reads the table."""
    pictures = tmp_path / "pictures"
    for name in ("robin", "wren"):
        (pictures / name).mkdir(parents=True)
        for i in range(2):
            colour = np.full((8, 8, 3), 40 * i + 9 * len(name), np.uint8)
            Image.fromarray(colour).save(pictures / name / f"{i}.png")
    with index.create(tmp_path / "i", model) as idx, Labels(idx) as labels:
        index.sync(idx, model, pictures)
        moved = index.file_id(pictures / "robin" / "1.png")
        edit = labels.set_label([moved], "=finch")
        assert index.sync(idx, model, pictures).unchanged == 4
        assert idx.get([moved])[0].label == "=finch"
        table = data.load(str(idx.path / "labels.csv"))
        by_name = {Path(name): table.classes[label] for name, label in zip(table.names, table.labels, strict=True)}
        assert by_name == {item.file: item.label for item in idx.items()}
        labels.undo(edit.number)
        (pictures / "robin" / "1.png").rename(pictures / "wren" / "5.png")
        index.sync(idx, model, pictures)
        assert idx.labels() == {"robin": 1, "wren": 3}


def test_an_outdated_index_stores_nothing(model: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with index.create(tmp_path / "i", model) as idx, Labels(idx) as labels:
        idx.add([index.Item("a", "/a", "robin")], draw(1))
        monkeypatch.setattr(idx, "is_current", lambda: False)
        with pytest.raises(OutdatedIndex, match="open it again"):
            labels.set_label(["a"], "wren")
        assert labels.history() == []


@pytest.mark.parametrize("stage", ["stored", "changed"])
def test_an_edit_that_was_interrupted_is_completed(
    stage: str, model: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after the history has it, before or after the index does; the next edit completes it."""
    with index.create(tmp_path / "i", model) as idx:
        idx.add([index.Item("a", "/a", "robin"), index.Item("b", "/b", "wren")], draw(2))
        labels = Labels(idx)
        with monkeypatch.context() as patched:
            if stage == "stored":
                patched.setattr(Labels, "_update_index", lambda *_: exec("raise OSError"))
            else:
                patched.setattr(LabelsFile, "finish", lambda *_: exec("raise OSError"))
            with pytest.raises(OSError):  # noqa: PT011 - has no message
                labels.rename("robin", "finch", by="anna")
        again = Labels(idx)
        again.set_label(["b"], "tit")
        assert {i: label for i, (label, _) in labels_of(idx).items()} == {"a": "finch", "b": "tit"}
        assert [summary.edit.action for summary in again.history()] == ["label", "rename"]
        again.undo(1)
        assert labels_of(idx)["a"][0] == "robin"


def test_damage_is_noticed(model: TrainedModel, tmp_path: Path) -> None:
    with index.create(tmp_path / "i", model) as idx, Labels(idx) as labels:
        idx.add([index.Item("a", "/a", "robin")], draw(1))
        for label in ("wren", "tit", "robin", "finch"):
            labels.set_label(["a"], label)
        labels.undo(4)
    file = tmp_path / "i" / "labels.sqlite"
    good = file.read_bytes()

    def changed(statement: str) -> Finding:
        file.write_bytes(good)
        with sqlite3.connect(file) as connection:
            connection.execute(statement)
        connection.close()
        with closing(LabelsFile(file)) as edits:
            return edits.check()

    assert changed("PRAGMA user_version").status == "ok"
    assert "damaged rows: 1" in changed("UPDATE edits SET new_label = 'x' WHERE number = 2").detail
    assert "missing rows: 1" in changed("DELETE FROM edits WHERE number = 2").detail
    assert "completed edits" in changed("UPDATE done SET batch = 8 WHERE batch = 1").detail
    with index.open(tmp_path / "i") as idx, Labels(idx) as labels:
        labels.set_metadata("a", {"n": 1})
        assert labels_of(idx)["a"] == ("robin", {"n": 1}), "the first edit is not made again"
    assert "commits lost" in changed("UPDATE commits SET count = 1").detail
    file.write_bytes(good[:3800] + bytes(400) + good[4200:])
    (finding,) = [found for found in verify_index(tmp_path / "i") if found.part == file.name]
    assert finding.status == "damaged"


@pytest.mark.slow
def test_killed_while_editing(model: TrainedModel, tmp_path: Path) -> None:
    """After each kill the last acknowledged edit, or the one that was under way, is in the index."""
    with index.create(tmp_path / "i", model) as idx:
        idx.add([index.Item(f"i{i}", f"/{i}", "start") for i in range(5)], np.ones((5, DIM)))
    last = "start"
    edits = 0
    for round_, after in enumerate((0.05, 0.1, 0.15, 0.2)):

        def work(sender: Any, round_: int = round_, last: str = last) -> None:
            with index.open(tmp_path / "i") as idx:
                labels = Labels(idx)
                sender.send("begun")
                for step in range(10_000):
                    label = f"r{round_} s{step}"
                    labels.rename(last, label)
                    last = label
                    sender.send(label)

        told = killed_while(work, after, least=2)
        edits += len(told)
        with index.open(tmp_path / "i") as idx, Labels(idx) as labels:
            marker = labels.set_metadata("i0", {"round": round_})  # completes what was under way
            assert marker.changed == 1
            (label,) = idx.labels()
            acknowledged = told[-1] if told else last
            following = f"r{round_} s{len(told)}"
            assert label in (acknowledged, following)
            assert idx.count() == 5
            last = label
    assert edits > 4
    (finding,) = [found for found in verify_index(tmp_path / "i") if found.part == "labels.sqlite"]
    assert finding.status == "ok"


def test_splits_and_names_that_a_table_cannot_hold(model: TrainedModel, tmp_path: Path) -> None:
    with index.create(tmp_path / "i", model) as idx, Labels(idx) as labels:
        splits = ["train", "validation", "test"]
        items = [index.Item(f"i{i}", f"/p/{i}.jpg", f"c{i % 2}", {"split": split}) for i, split in enumerate(splits)]
        items.append(index.Item("odd", "/p/a\\\\b.jpg", "c1", {"split": "train"}))
        idx.add(items, draw(4))
        assert labels.write_csv(tmp_path / "t.csv") == 3
        table = data.load(str(tmp_path / "t.csv"), check=False)
        assert table.splits is not None
        assert sorted(map(str, table.splits)) == ["test", "train", "validation"]
        idx.add([index.Item("up", "", "c0", {})], draw(1))  # an upload, without a split
        rows = list(csv.DictReader(labels.as_csv().splitlines()))
        assert set(rows[0]) == {"path", "label"}
        assert rows[-1]["path"] == str(idx.path / "uploads" / "up.jpg")
        assert labels_module.TABLE == "labels.csv"
