"""Files that appear whole or not at all."""

import os
from pathlib import Path

import pytest

from lookalike._util.files import check_output_folder, replacing, require_writable, write_text


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_file_appears_when_all_went_well(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "a.txt"
    with replacing(path) as unfinished:
        assert unfinished.parent == path.parent  # on the same disk, that moving is one step
        assert unfinished.suffix == ".txt"  # for writers that go by it
        assert unfinished.name.startswith(".")
        unfinished.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole"
    assert names(path.parent) == ["a.txt"]


@pytest.mark.parametrize("failure", [OSError, KeyboardInterrupt])
def test_what_fails_leaves_the_old_file_and_nothing_else(failure: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail_half_way() -> None:
        with replacing(path) as unfinished:
            unfinished.write_text("ha")
            raise failure

    with pytest.raises(failure):
        fail_half_way()
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_also_when_the_last_steps_fail(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(*((os, "fsync", fail) if step == "fsync" else (Path, "replace", fail)))
        with pytest.raises(OSError, match="full"):
            write_text(path, "new")
    assert path.read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_writer_may_take_the_file_away_itself(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "a.txt") as unfinished:
        unfinished.unlink()
    assert names(tmp_path) == []


def test_text_is_utf_8_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "first, and longer")
    write_text(path, "Gürbüz\n")
    assert path.read_bytes() == b"G\xc3\xbcrb\xc3\xbcz\n"


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_others_may_read_it_as_any_other_file(mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        write_text(tmp_path / "a.txt", "")
        (tmp_path / "plain.txt").write_text("")
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode == (tmp_path / "plain.txt").stat().st_mode


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc here, which nobody can write to")
def test_a_place_that_only_looks_writable() -> None:
    with pytest.raises(ValueError, match="/proc/x/y cannot be written"):
        require_writable(Path("/proc/x/y"))


def test_a_folder_of_ones_own_is_new_or_empty_or_was_filled_before(tmp_path: Path) -> None:
    check_output_folder(tmp_path / "new" / "er", "study", ["parts"])
    check_output_folder(tmp_path, "study", ["parts"])
    assert names(tmp_path) == []
    (tmp_path / "index.html").write_text("somebody's")
    with pytest.raises(ValueError, match=r"exists and is no study: choose another --out"):
        check_output_folder(tmp_path, "study", ["numbers.json", "parts"])
    with pytest.raises(ValueError, match=r"--out must be a folder, got the file .*index\.html"):
        check_output_folder(tmp_path / "index.html", "study", ["parts"])
    with pytest.raises(ValueError, match=r"index\.html is not a folder"):
        check_output_folder(tmp_path / "index.html" / "below", "study", ["parts"])
    (tmp_path / "parts").mkdir()
    check_output_folder(tmp_path, "study", ["numbers.json", "parts"])
