"""Hashes of files are remembered, and never those of another content."""

import os
import sqlite3
from pathlib import Path

import pytest

from lookalike.data import hash_cache
from lookalike.data.hash_cache import FILE, hash_file


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were read to hash them."""
    monkeypatch.setenv("LOOKALIKE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(hash_cache, "SETTLED", -1)
    read_and_hash = hash_cache.hash_content
    names: list[Path] = []

    def record(path: Path) -> str:
        names.append(path)
        return read_and_hash(path)

    monkeypatch.setattr(hash_cache, "hash_content", record)
    return names


def test_a_file_is_read_again_only_if_it_changed(tmp_path: Path, reads: list[Path]) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"first")
    first = hash_file(file)
    assert hash_file(file) == first
    assert len(reads) == 1
    os.utime(file, ns=(1, 1))
    assert hash_file(file) == first
    assert len(reads) == 2
    file.write_bytes(b"other")
    os.utime(file, ns=(1, 1))  # the same size and time of modification
    assert hash_file(file) != first


def test_a_file_that_just_changed_is_not_remembered(
    tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hash_cache, "SETTLED", 10**12)
    file = tmp_path / "a.png"
    file.write_bytes(b"first")
    hash_file(file)
    hash_file(file)
    assert len(reads) == 2


def test_a_damaged_or_forbidden_cache_is_not_used(
    tmp_path: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"first")
    first = hash_file(file)
    with sqlite3.connect(tmp_path / "cache" / FILE) as connection:
        connection.execute("UPDATE hashes SET hash = replace(hash, substr(hash, 1, 1), 'x')")
    assert hash_file(file) == first
    assert len(reads) == 2
    (tmp_path / "file").touch()
    monkeypatch.setenv("LOOKALIKE_CACHE", str(tmp_path / "file" / "cache"))
    assert hash_file(file) == first
