"""Pictures in object storage: listed, fetched and decoded under limits; errors are one line."""

import logging
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lookalike.data import object_storage
from lookalike.data.collection import list_with_sizes
from lookalike.data.object_storage import StorageError, StoredPicture, fetch, list_files
from lookalike.data.pictures import BrokenData, UnreadablePicture
from lookalike.data.reading import read_picture


@pytest.fixture
def memory() -> Iterator[Any]:
    import fsspec

    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


def encode(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_a_listing_has_names_sizes_labels_and_splits(memory: Any) -> None:
    for name in ("train/wren/1.png", "test/robin/deep/2.JPG", "train/wren/.hidden/3.png", "train/wren/notes.txt"):
        memory.pipe(f"/birds/{name}", name.encode())
    listed = list_with_sizes("memory://birds")
    assert listed.pictures.names == ["test/robin/deep/2.JPG", "train/wren/1.png"]
    assert listed.pictures.labels == ["robin", "wren"]
    assert listed.pictures.splits == ["test", "train"]
    assert listed.sizes == [21, 16]
    assert listed.pictures.notes == ("files that are not read as pictures: .txt 1",)
    assert next(file.name for file in list_files("memory://birds/train/wren")) == ".hidden/3.png"
    assert fetch("memory://birds/", "train/wren/1.png") == b"train/wren/1.png"
    with pytest.raises(BrokenData, match=r"memory://birds/train/wren/none has no pictures"):
        list_with_sizes("memory://birds/train/wren/none")


def test_a_picture_is_decoded_as_from_a_file(memory: Any, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (900, 700, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6
    for name, content in {
        "a.jpg": encode(Image.fromarray(pixels), "JPEG", exif=exif),
        "b.png": encode(Image.fromarray(pixels).convert("RGBA")),
    }.items():
        memory.pipe(f"/p/{name}", content)
        (tmp_path / name).write_bytes(content)
        for at_least in (None, 100):
            stored = StoredPicture("memory://p", name).read(at_least)
            assert np.array_equal(np.asarray(stored), np.asarray(read_picture(tmp_path / name, at_least=at_least)))


def test_limits_of_pictures_from_strangers(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe("/p/long.png", encode(Image.new("L", (1000, 1))))
    memory.pipe("/p/huge.png", encode(Image.new("1", (12_000, 12_000))))
    memory.pipe("/p/text.png", b"no picture")
    memory.pipe("/p/empty.png", b"")
    for name, reason in {
        "long.png": "the longer side of a picture must be at most 200 times the shorter one",
        "huge.png": "a picture must have at most 89.4785 million pixels",
        "text.png": "not a picture",
        "empty.png": "empty file",
        "none.png": "no such file",
    }.items():
        with pytest.raises(UnreadablePicture, match=f"memory://p/{name}: {reason}"):
            StoredPicture("memory://p", name).read()
    monkeypatch.setattr(object_storage, "LARGEST_FILE", 5)
    with pytest.raises(UnreadablePicture, match="larger than"):
        fetch("memory://p", "text.png")


def test_a_failure_that_passes_is_tried_again(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe("/p/a.png", b"content")
    calls: list[str] = []
    original = memory.cat_file

    def failing(path: str, *arguments: Any, **options: Any) -> bytes:
        calls.append(path)
        if len(calls) < 3:
            raise ConnectionResetError("reset by peer")
        content: bytes = original(path, *arguments, **options)
        return content

    monkeypatch.setattr(type(memory), "cat_file", lambda _self, *a, **o: failing(*a, **o))
    monkeypatch.setattr(object_storage, "FIRST_PAUSE", 0)
    assert fetch("memory://p", "a.png") == b"content"
    assert len(calls) == 3
    monkeypatch.setattr(type(memory), "cat_file", lambda *_a, **_o: (_ for _ in ()).throw(TimeoutError("too\nslow")))
    with pytest.raises(StorageError, match=r"^memory://p/a\.png cannot be read: too slow$"):
        fetch("memory://p", "a.png")


@pytest.mark.parametrize("provider", ["gcsfs", "gcsfs.credentials", "s3fs", "fsspec"])
def test_providers_print_nothing_beside_the_line(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[logging.LogRecord] = []

    class Terminal(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            printed.append(record)

    monkeypatch.setattr(logging, "lastResort", Terminal())  # what Python does with warnings if nobody set up logging
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logging.getLogger("another").warning("seen")
    logging.getLogger(provider).warning("default credentials were not found")
    assert [record.name for record in printed] == ["another"]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(
        StorageError, match=r"gs:// needs another package \(.*gcsfs.*\): pip install 'lookalike\[cloud\]'"
    ):
        list_files("gs://bucket/birds")
    with pytest.raises(StorageError, match="nonsense://birds cannot be read: Protocol not known: nonsense"):
        list_files("nonsense://birds")


def test_missing_credentials_are_the_providers_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("s3fs", reason="S3FS IS NOT INSTALLED: missing credentials are not tested")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    with pytest.raises(StorageError, match=r"^s3://bucket/birds cannot be read: Unable to locate credentials$"):
        list_files("s3://bucket/birds")
