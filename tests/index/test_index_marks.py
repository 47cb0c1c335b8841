"""Marks against a plain list; then what is left of them: contradictions, vanished pictures, files, bad input."""

import csv
import shutil
import sqlite3
import threading
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_helpers import DIM

from lookalike import index
from lookalike._util.checksums import hash_bytes
from lookalike.index import kept_pictures, marks_file
from lookalike.index.contents import MarkedPicture, locate, marked_pictures
from lookalike.index.marks import Marks
from lookalike.index.verify import verify_index
from lookalike.inference.model import TrainedModel


def content(number: int) -> str:
    return f"{number:032x}"


A, B, C, D = map(content, range(4))


def test_equal_a_plain_list(tmp_path: Path) -> None:
    """Random marks, groups and undoings; after each, the last one that was not undone counts."""
    rng = np.random.default_rng(0)
    log: list[tuple[int, frozenset[str], str]] = []  # batch, pair, verdict
    undone: set[int] = set()
    with Marks(tmp_path) as stored:
        for _ in range(120):
            step = rng.random()
            verdict: Any = rng.choice(["same", "different", "skip"])
            if step < 0.6:
                one, other = rng.choice(6, 2, replace=False).tolist()
                number = stored.add(content(one), content(other), verdict, by="anna")
                log.append((number, frozenset((content(one), content(other))), verdict))
            elif step < 0.75:
                chosen = rng.choice(6, 3, replace=False).tolist()
                number = stored.add_group([content(i) for i in chosen], verdict)
                log += [(number, frozenset(map(content, pair)), verdict) for pair in combinations(chosen, 2)]
            elif log:
                place = int(rng.integers(len(log)))
                batch = log[place][0]
                size = sum(entry[0] == batch for entry in log)
                assert stored.undo(place + 1) == (0 if batch in undone else size)
                undone.add(batch)
            last = {pair: verdict for batch, pair, verdict in log if batch not in undone}
            in_force = {pair: verdict == "same" for pair, verdict in last.items() if verdict != "skip"}
            review = stored.review()
            left_out = {mark for found in review.contradictions for mark in found.marks}
            kept = {frozenset((pair.first, pair.second)): pair.same for pair in review.pairs}
            assert kept.items() <= in_force.items()
            assert {log[mark - 1][1] for mark in left_out} == in_force.keys() - kept.keys()
            for one in range(6):
                others = [content(i) for i in range(6) if i != one]
                found = {other: mark.verdict for other, mark in stored.between(content(one), others).items()}
                assert found == {
                    o: last[frozenset((content(one), o))] for o in others if frozenset((content(one), o)) in last
                }
        assert stored.count() == sum(batch not in undone for batch, _, _ in log)
    with Marks(tmp_path) as again:
        history = again.history()
        assert [mark.number for mark in history] == list(range(len(log), 0, -1))
        assert [(mark.batch, frozenset(mark.pair), mark.verdict) for mark in history[::-1]] == log
        assert {mark.batch for mark in history if mark.undone_time is not None} == undone
        assert again.history(5, before=10) == history[-9:-4]


def test_contradictions_are_left_out_and_come_back(tmp_path: Path) -> None:
    stored = Marks(tmp_path)
    first = stored.add(A, B, "same", by="anna")
    stored.add(B, C, "same", by="anna")
    stored.add(A, D, "different", by="anna")
    assert [pair[:3] for pair in stored.pairs()] == [(A, B, True), (B, C, True), (A, D, False)]
    wrong = stored.add(C, A, "different", by="ben")
    assert [pair[:3] for pair in stored.pairs()] == [(A, D, False)]
    (found,) = stored.contradictions()
    assert found.different[:3] == (A, C, False)
    assert found.marks == [first, 2, wrong]
    assert [pair.mark for pair in found.chain] == [first, 2]
    assert stored.undo(wrong, by="ben") == 1
    assert len(stored.pairs()) == 3


def test_two_people_about_one_pair(tmp_path: Path) -> None:
    anna, ben = Marks(tmp_path), Marks(tmp_path)
    anna.add(A, B, "same", by="anna")
    ben.add(B, A, "different", by="ben")
    assert [pair.same for pair in anna.pairs()] == [False]
    states = anna.review().states
    assert [(mark.by, states[mark.number]) for mark in ben.history()] == [("ben", "in force"), ("anna", "overruled")]
    anna.undo(2, by="anna")
    assert [pair.same for pair in ben.pairs()] == [True]
    assert ben.history(1)[0].undone_by == "anna"
    assert ben.undo(2) == 0
    assert ben.history(1)[0].undone_by == "anna"  # the first undoing counts


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "pictures"
    folder.mkdir()
    files = [folder / f"{i}.jpg" for i in range(4)]
    for i, file in enumerate(files):
        file.write_bytes(b"picture %d" % i)
    return files


def stamp_of(file: Path) -> str:
    return f"{file.stat().st_size}:0:{hash_bytes(file.read_bytes())}"


@pytest.mark.parametrize("store", ["faiss", "milvus"])
def test_pictures_are_known_by_content(store: str, model: TrainedModel, pictures: list[Path], tmp_path: Path) -> None:
    if store == "milvus":
        pytest.importorskip("milvus_lite", reason="NOT TESTED: Milvus is not installed")
        store = str(tmp_path / "x.db")
    with index.create(tmp_path / "i", model, store=store) as idx:
        items = [index.file_item(file) for file in pictures]
        vectors = np.eye(4, DIM) + 1
        idx.add(items, vectors, [stamp_of(file) for file in pictures[:3]] + [""])
        marked = marked_pictures(idx, [item.id for item in items])
        assert [picture.content for picture in marked] == [hash_bytes(b"picture %d" % i) for i in range(4)]
        stored = Marks(idx.path)
        stored.add(marked[0], marked[1], "same")
        stored.add(marked[2], marked[3], "same")
        upload = MarkedPicture(hash_bytes(b"uploaded"), "f" * 32)
        stored.add(upload, marked[0], "different")
        assert len(stored.pairs(idx)) == 2
        assert stored.review(idx).expired == 1  # the upload was not kept
        stored.keep(upload.content, b"its jpeg")
        assert len(stored.pairs(idx)) == 3
        # moved: another id and path, the same content
        moved = pictures[0].rename(pictures[0].with_name("moved.jpg"))
        idx.delete([items[0].id])
        assert stored.review(idx).expired == 2
        idx.add([index.file_item(moved)], vectors[:1], [stamp_of(moved)])
        assert len(stored.pairs(idx)) == 3
        assert locate(idx, marked)[marked[0].content] == index.file_id(moved)
        # another content in the same place is another picture
        pictures[1].write_bytes(b"replaced")
        idx.restamp({items[1].id: stamp_of(pictures[1])})
        assert [pair.same for pair in stored.pairs(idx)] == [True, False]
        # an upload that was added later has the id of the marked one, and the stamp of what was stored
        stored.picture(upload.content).unlink()
        idx.add([index.Item(upload.id, "")], vectors[:1], [f"3:0:{hash_bytes(b'jpg')}"])
        assert len(stored.pairs(idx)) == 2
        with pytest.raises(KeyError, match="there is no item nobody"):
            marked_pictures(idx, ["nobody"])


def test_csv_has_the_whole_history(tmp_path: Path) -> None:
    stored = Marks(tmp_path)
    nasty = MarkedPicture(A, "a", "=cmd()\nsecond line")
    stored.add(nasty, MarkedPicture(B, "b", "/b.jpg"), "same", by="@anna", model="m" * 32)
    stored.add_group([A, C, D], "skip")
    stored.undo(3, by="ben")
    assert stored.write_csv(tmp_path / "marks.csv") == 4
    rows = list(csv.DictReader((tmp_path / "marks.csv").open(newline="")))
    assert [row["state"] for row in rows] == ["in force", "undone", "undone", "undone"]
    assert [row["together"] for row in rows] == ["1", "2", "2", "2"]
    assert rows[0]["query_path"] == "'=cmd()\nsecond line"
    assert rows[0]["by"] == "'@anna"
    assert rows[0]["query_content"] == A
    assert rows[3]["undone_by"] == "ben"
    assert rows[0]["time"].endswith("+00:00")


def test_bad_input(tmp_path: Path) -> None:
    stored = Marks(tmp_path)
    assert stored.history() == stored.pairs() == stored.contradictions() == []
    assert stored.count() == 0
    assert stored.check() is None
    with pytest.raises(KeyError, match="there is no mark 1"):
        stored.undo(1)
    verdict: Any = "maybe"
    with pytest.raises(ValueError, match="must be one of same, different, skip, got 'maybe'"):
        stored.add(A, B, verdict)
    with pytest.raises(ValueError, match="both pictures have the same content"):
        stored.add(A, MarkedPicture(A, "x"), "same")
    with pytest.raises(ValueError, match="32 hexadecimal digits"):
        stored.add("../../etc/passwd", B, "same")
    with pytest.raises(ValueError, match="an id must be"):
        stored.add(MarkedPicture(A, "a/b"), B, "same")
    with pytest.raises(ValueError, match="by must be a printable text"):
        stored.add(A, B, "same", by="a\nb")
    with pytest.raises(ValueError, match="at least two pictures"):
        stored.add_group([A, A], "same")
    with pytest.raises(ValueError, match="at most 50 pictures"):
        stored.add_group([content(i) for i in range(51)], "same")
    assert not (tmp_path / marks_file.FILE).exists()  # nothing was stored
    with pytest.raises(FileNotFoundError):
        Marks(tmp_path / "nowhere").add(A, B, "same")
    stored.add(A, B, "same")
    with pytest.raises(KeyError):
        stored.undo(2)


def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = Marks(tmp_path)
    monkeypatch.setattr(marks_file, "MOST_MARKS", 4)
    stored.add_group([A, B, C], "same")
    with pytest.raises(ValueError, match="at most 4 marks"):
        stored.add_group([A, B, D], "same")
    assert stored.count() == 3
    monkeypatch.setattr(kept_pictures, "MOST_KEPT", 2)
    stored.keep(A, b"1")
    stored.keep(D, b"2")
    with pytest.raises(ValueError, match="keeps at most 2 marked pictures"):
        stored.keep(B, b"3")  # the copy of D is young: its mark may be on its way
    monkeypatch.setattr(kept_pictures, "LEFTOVER_SECONDS", -1)
    stored.keep(B, b"3")
    assert stored.picture(D) is None
    assert stored.picture(A) is not None
    assert stored.picture(B).stat().st_mode & 0o777 == 0o600
    with pytest.raises(ValueError, match="at most 2,000,000 bytes"):
        stored.keep(C, bytes(2_000_001))
    with pytest.raises(ValueError, match="32 hexadecimal digits"):
        stored.picture("../x")


def test_damage_is_noticed(model: TrainedModel, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "i"
    index.create(path, model).close()
    with Marks(path) as stored:
        stored.add(A, B, "same")
        stored.add(C, B, "same")
    assert (marks_file.FILE, "ok") in [finding[:2] for finding in verify_index(path)]
    with sqlite3.connect(path / marks_file.FILE) as connection:
        connection.execute("UPDATE marks SET verdict = 'different' WHERE number = 1")
    connection.close()
    with Marks(path) as stored:
        assert [pair.mark for pair in stored.pairs()] == [2]
    (finding,) = [finding for finding in verify_index(path) if finding.part == marks_file.FILE]
    assert (finding.status, "damaged rows: 1" in finding.detail) == ("damaged", True)
    with Marks(path) as stored:
        stored.undo(2)
    with sqlite3.connect(path / marks_file.FILE) as connection:
        connection.execute("UPDATE marks SET verdict = 'same' WHERE number = 1")
        connection.execute("UPDATE undone SET batch = 2050")
    connection.close()
    with Marks(path) as stored:
        stored.history()
    assert "damaged rows of undone marks: 1" in caplog.text
    (finding,) = [finding for finding in verify_index(path) if finding.part == marks_file.FILE]
    assert (finding.status, "damaged rows of undone marks: 1" in finding.detail) == ("damaged", True)
    (path / marks_file.FILE).write_bytes(b"no database")
    (finding,) = [finding for finding in verify_index(path) if finding.part == marks_file.FILE]
    assert finding.status == "damaged"


def test_a_copied_index_has_its_marks(model: TrainedModel, tmp_path: Path) -> None:
    index.create(tmp_path / "i", model).close()
    with Marks(tmp_path / "i") as stored:
        stored.add(A, B, "same")
    shutil.copytree(tmp_path / "i", tmp_path / "copy")
    assert len(Marks(tmp_path / "copy").pairs()) == 1


def test_many_threads_make_one_file(tmp_path: Path) -> None:
    """Each with a connection of its own; the first ones race for making the file."""
    barrier = threading.Barrier(6)
    failures: list[BaseException] = []

    def work(person: int) -> None:
        try:
            with Marks(tmp_path) as stored:
                barrier.wait()
                for i in range(20):
                    stored.add(content(person), content(100 + i), "same", by=str(person))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(person,)) for person in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    history = Marks(tmp_path).history()
    assert [mark.number for mark in history] == list(range(120, 0, -1))
    assert {(mark.by, mark.result.content) for mark in history} == {
        (str(person), content(100 + i)) for person in range(6) for i in range(20)
    }
