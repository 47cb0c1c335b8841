"""Rows on disk: what was finished is there, what was interrupted is not, whoever else writes."""

import json
import multiprocessing
import shutil
import time
from collections import namedtuple
from multiprocessing.synchronize import Event
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from numpy.typing import NDArray

from lookalike._util.hashing import digest
from lookalike.inference import feature_store
from lookalike.inference.feature_store import KEY_LENGTH, FeatureStore

SHAPE = (3, 4)
ROW = 2 * 3 * 4  # bytes
LINE = KEY_LENGTH + 1


def store(folder: Path, **description: object) -> FeatureStore:
    return FeatureStore(folder, {"weights": "w", **description}, SHAPE)


def row(number: int) -> NDArray[np.float16]:
    return np.full(SHAPE, number, np.float16) + np.arange(12, dtype=np.float16).reshape(SHAPE) / 64


def key(number: int) -> str:
    return digest(f"picture {number}")


def write(into: FeatureStore, *numbers: int) -> None:
    with into.writer() as writer:
        writer.append([key(n) for n in numbers], np.stack([row(n) for n in numbers]))


def assert_holds(read: FeatureStore, *numbers: int) -> None:
    places = read.find([key(n) for n in numbers])
    assert np.array_equal(read.read(places), np.stack([row(n) for n in numbers]))


def test_rows_come_back_in_the_order_asked_for(tmp_path: Path) -> None:
    first = store(tmp_path)
    assert key(0) not in first
    write(first, 0, 1, 2)
    assert key(0) not in first  # not before it looks
    first.refresh()
    assert key(0) in first
    write(first, 3)
    for there in (store(tmp_path), first):
        there.refresh()
        assert_holds(there, 3, 0, 2, 2, 1)
    assert first.read(first.find([])).shape == (0, *SHAPE)
    about = json.loads((first.folder / "about.json").read_text())
    assert about == {"weights": "w", "shape": [3, 4]}


def test_an_unknown_key_has_no_place(tmp_path: Path) -> None:
    with pytest.raises(KeyError):
        store(tmp_path).find([key(0)])


@pytest.mark.parametrize("torn", ["rows", "keys", "sums"])
def test_whatever_a_kill_tears_off_is_written_again(torn: str, tmp_path: Path) -> None:
    whole = store(tmp_path / "whole")
    write(whole, 0, 1, 2)
    size = {"rows": ROW, "keys": LINE, "sums": 4}[torn]
    for length in range(size, 3 * size):
        copy = tmp_path / "torn"
        shutil.copytree(whole.folder, copy / whole.folder.name)
        with (copy / whole.folder.name / f"part-000.{torn}").open("r+b") as file:
            file.truncate(length)
        again = store(copy)
        left = length // size
        assert [key(n) in again for n in range(3)] == [n < left for n in range(3)]
        assert_holds(again, *range(left))
        write(again, 7, *range(left, 3))
        again.refresh()
        assert_holds(again, *range(3), 7)
        assert sorted(path.name for path in again.folder.iterdir()) == [
            "about.json",
            "part-000.keys",
            "part-000.rows",
            "part-000.sums",
        ]
        shutil.rmtree(copy)


@pytest.mark.parametrize("rubbish", [b"\0" * LINE, b"x" * LINE, b"\n" * LINE, b"0" * LINE])
def test_keys_behind_rubbish_are_not_taken_for_those_of_other_rows(rubbish: bytes, tmp_path: Path) -> None:
    """A file system that lost a block in a power cut fills it with zeros."""
    damaged = store(tmp_path)
    write(damaged, 0, 1, 2, 3)
    keys = damaged.folder / "part-000.keys"
    text = keys.read_bytes()
    keys.write_bytes(text[:LINE] + rubbish + text[2 * LINE :])
    damaged.refresh()
    assert [key(n) in damaged for n in range(4)] == [True, False, False, False]
    assert_holds(damaged, 0)
    write(damaged, 3, 1)
    damaged.refresh()
    assert_holds(damaged, 0, 1, 3)


@pytest.mark.parametrize("damage", ["rows", "sums"])
def test_damaged_rows_are_found_and_written_again(damage: str, tmp_path: Path) -> None:
    damaged = store(tmp_path)
    write(damaged, 0, 1, 2)
    damaged.refresh()
    file = damaged.folder / f"part-000.{damage}"
    content = bytearray(file.read_bytes())
    content[len(content) // 3 + 1] ^= 4  # in the second row
    file.write_bytes(content)
    for reader in (store(tmp_path), store(tmp_path)):
        assert_holds(reader, 0, 2)
        with pytest.raises(OSError, match=r"part-000\.rows: row 1 is damaged"):
            assert_holds(reader, 1)
    keys = [key(n) for n in (0, 1, 2, 9)]
    assert reader.drop_damaged(keys) == 1
    assert key(1) not in reader
    assert key(1) not in store(tmp_path)  # and nobody else finds it
    assert reader.drop_damaged(keys) == 0
    write(reader, 1)
    for again in (reader, store(tmp_path)):
        again.refresh()
        assert again.drop_damaged(keys) == 0
        assert_holds(again, 0, 1, 2)
        assert len(again) == 3


def test_parts_without_checksums_are_read_and_get_them(tmp_path: Path) -> None:
    older = store(tmp_path)
    write(older, 0, 1)
    (older.folder / "part-000.sums").unlink()
    older.refresh()
    assert_holds(older, 0, 1)
    write(older, 2)
    older.refresh()
    assert_holds(older, 0, 1, 2)
    content = bytearray((older.folder / "part-000.rows").read_bytes())
    content[0] ^= 1
    (older.folder / "part-000.rows").write_bytes(content)
    assert store(tmp_path).drop_damaged([key(0), key(1), key(2)]) == 1


def test_an_interruption_between_rows_and_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted = store(tmp_path)
    write(interrupted, 0)

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(feature_store.os, "fsync", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write(interrupted, 1, 2)
    interrupted.refresh()
    assert [key(n) in interrupted for n in range(3)] == [True, False, False]
    write(interrupted, 2)
    interrupted.refresh()
    assert_holds(interrupted, 0, 2)


def test_two_writers_take_two_parts(tmp_path: Path) -> None:
    one, other = store(tmp_path), store(tmp_path)
    with one.writer() as first, other.writer() as second:
        for n in range(4):
            (first, second)[n % 2].append([key(n)], row(n)[None])
        reader = store(tmp_path)  # what is finished is found while they go on
        assert_holds(reader, 0, 1, 2, 3)
        first.append([key(4)], row(4)[None])
        assert key(4) not in reader
        reader.refresh()
        assert_holds(reader, 4, 3, 2, 1, 0)
    names = sorted(path.name for path in reader.folder.glob("part*.keys"))
    assert names == ["part-000.keys", "part-001.keys"]
    write(one, 5)  # and both parts are free again
    assert (one.folder / "part-000.keys").stat().st_size == 4 * LINE


def write_every_other(folder: Path, first: int, ready: Event, done: Event, go_on: Event) -> None:
    with store(folder).writer() as writer:
        ready.set()
        go_on.wait()
        for n in range(first, 40, 2):
            writer.append([key(n)], row(n)[None])
        done.set()
        time.sleep(60)


def test_two_processes_write_at_once_and_one_is_killed(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    go_on = fork.Event()
    ready, done = [fork.Event(), fork.Event()], [fork.Event(), fork.Event()]
    processes = [
        fork.Process(target=write_every_other, args=(tmp_path, n, ready[n], done[n], go_on), daemon=True)
        for n in (0, 1)
    ]
    for process in processes:
        process.start()
    try:
        assert all(event.wait(30) for event in ready)
        go_on.set()
        assert all(event.wait(30) for event in done)
        processes[0].kill()
        processes[0].join()
        read = store(tmp_path)
        assert_holds(read, *range(40))
        write(read, 40)  # a lock does not outlive its process
        read.refresh()
        assert_holds(read, *range(41))
        assert len(list(read.folder.glob("*.rows"))) == 2
    finally:
        for process in processes:
            process.kill()
            process.join()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_half_precision_cannot_hold_is_refused(value: float, tmp_path: Path) -> None:
    careful = store(tmp_path)
    rows = np.stack([row(0), row(1)])
    rows[1, 2, 3] = value
    with careful.writer() as writer:
        with pytest.raises(ValueError, match=r"do not fit half precision .* train with --no-freeze-backbone$"):
            writer.append([key(0), key(1)], rows)
        writer.append([key(2)], row(2)[None])
    careful.refresh()
    assert [key(n) in careful for n in range(3)] == [False, False, True]
    assert_holds(careful, 2)


def test_a_disk_without_room_is_found_out_beforehand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = FeatureStore(tmp_path, {}, (49, 1280))
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 0, 125_440_000))
    assert large.lacks_space(1000) is None
    lack = large.lacks_space(100_001)
    assert lack == f"the features of 100,001 pictures need 12.5 GB and {tmp_path} has 0.1 GB free"


def test_descriptions_do_not_share(tmp_path: Path) -> None:
    write(store(tmp_path), 0)
    assert key(0) in store(tmp_path)
    assert key(0) not in store(tmp_path, size=32)
    assert key(0) not in store(tmp_path, weights="v")
    assert key(0) not in FeatureStore(tmp_path, {"weights": "w"}, (4, 3))
    assert len(list(tmp_path.iterdir())) == 1  # the others hold nothing yet


@examples(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.text(max_size=3), max_size=4), min_size=2, max_size=2, unique_by=tuple))
def test_other_parts_give_another_digest(sequences: list[list[str]]) -> None:
    one, other = sequences
    assert digest(*one) != digest(*other)


def test_digest() -> None:
    assert digest("ab", "c") != digest("a", "bc")
    assert digest("a", "") != digest("a")
    assert digest("é") == digest("é".encode())
    assert digest("caf\udce9") == digest(b"caf\xe9")  # a file's name in Latin 1, as Python gives it
    assert len(digest()) == KEY_LENGTH
