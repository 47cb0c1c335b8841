"""Files that change after they were indexed are not served under their old labels."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from server_helpers import encoded, noise

from lookalike import index
from lookalike.cli import main
from lookalike.inference.model import TrainedModel
from lookalike.server import create_app


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for label in ("wren", "robin"):
        (tmp_path / "birds" / label).mkdir(parents=True)
        for i in range(2):
            (tmp_path / "birds" / label / f"{i}.bmp").write_bytes(encoded(noise(16, 16, i), "BMP"))
    return tmp_path / "birds"


@pytest.fixture
def synced(served_run: Path, served_model: TrainedModel, folder: Path, tmp_path: Path) -> Iterator[index.Index]:
    with index.create(tmp_path / "birds.idx", run=served_run) as idx:
        index.sync(idx, served_model, folder)
        yield idx


def other_content_same_size_and_time(file: Path) -> None:
    before = file.stat()
    file.write_bytes(encoded(noise(16, 16, 99), "BMP"))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert file.stat().st_size == before.st_size


def linked_elsewhere(file: Path) -> None:
    secret = file.parent.parent / "secret.bmp"
    secret.write_bytes(encoded(noise(16, 16, 98), "BMP"))
    file.unlink()
    file.symlink_to(secret)


CHANGES: list[Callable[[Path], object]] = [
    other_content_same_size_and_time,
    linked_elsewhere,
    lambda file: file.write_bytes(encoded(noise(20, 20, 97), "BMP")),
    lambda file: file.write_bytes(file.read_bytes() + b"\0"),
    lambda file: os.truncate(file, 100),
    lambda file: os.truncate(file, 50_000_000_000),  # sparse: it must not be read
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_is_gone(
    synced: index.Index, served_model: TrainedModel, folder: Path, change: Callable[[Path], object]
) -> None:
    file = folder / "wren" / "0.bmp"
    item_id = index.file_id(file)
    with TestClient(create_app(synced, served_model), base_url="http://127.0.0.1") as client:
        first = client.get(f"/items/{item_id}/image")
        assert first.status_code == 200
        assert first.headers["content-disposition"] == f'inline; filename="{item_id}.jpg"'
        change(file)
        answers = [
            client.get(f"/items/{item_id}/image"),
            client.get(f"/items/{item_id}/image", params={"side": 64}),
            client.post("/explain", files={"id": (None, item_id)}),
            client.post("/search", files={"id": (None, item_id)}, data={"crop": "0,0,0.5,0.5"}),
        ]
        for answer in answers:
            assert (answer.status_code, answer.json()["error"]["code"]) == (410, "changed")
        assert client.get(f"/items/{index.file_id(folder / 'wren' / '1.bmp')}/image").status_code == 200


def test_a_touched_file_is_served_and_an_updated_index_serves_the_new_one(
    synced: index.Index, served_model: TrainedModel, folder: Path
) -> None:
    file = folder / "wren" / "0.bmp"
    item_id = index.file_id(file)
    with TestClient(create_app(synced, served_model), base_url="http://127.0.0.1") as client:
        os.utime(file, (1, 1))
        assert client.get(f"/items/{item_id}/image").status_code == 200
        file.write_bytes(encoded(noise(30, 30, 96), "BMP"))
        assert client.get(f"/items/{item_id}/image").status_code == 410
        assert index.sync(synced, served_model, folder).updated == 1
        assert client.get(f"/items/{item_id}/image").status_code == 200


def test_the_page_of_a_search_leaves_out_changed_files(synced: index.Index, folder: Path, tmp_path: Path) -> None:
    other_content_same_size_and_time(folder / "wren" / "0.bmp")
    page = tmp_path / "page.html"
    words = ["search", str(synced.path), str(folder / "robin" / "1.bmp"), "--html", str(page), "--device", "cpu"]
    assert main(words) == 0
    assert page.read_text().count("changed since it was indexed") == 1


@pytest.mark.parametrize("follow", [True, False])
def test_links_are_followed_or_left_out(
    served_run: Path, folder: Path, tmp_path: Path, follow: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.bmp").write_bytes(encoded(noise(16, 16, 95), "BMP"))
    (folder / "linked").symlink_to(outside)
    (folder / "wren" / "2.bmp").symlink_to(outside / "secret.bmp")
    words = ["index", str(served_run), str(folder), "--out", str(tmp_path / "i"), "--device", "cpu"]
    if not follow:
        words.append("--no-follow-symlinks")
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert ("symbolic links are skipped: 2" in printed) is not follow
    with index.open(tmp_path / "i") as idx:
        assert idx.count() == (6 if follow else 4)
        assert ("linked" in idx.labels()) is follow
