"""POST /export: CSV, paths and a zip of the originals."""

import csv
import io
import zipfile

import httpx
import pytest
from fastapi.testclient import TestClient
from server_helpers import READ, WRITE

from lookalike import index
from lookalike.inference.model import TrainedModel
from lookalike.server import Keys, create_app


def export(client: TestClient, ids: str, kind: str, **headers: str) -> httpx.Response:
    return client.post("/export", files={"ids": (None, ids), "kind": (None, kind)}, headers=headers)


def test_all_kinds(client: TestClient, idx: index.Index) -> None:
    items = idx.items(limit=3)
    idx.add([items[1]._replace(label="=1+1", metadata={"place": "sea"})], idx.vectors([items[1].id]))
    ids = ",".join(item.id for item in items)
    rows = list(csv.DictReader(io.StringIO(export(client, ids, "csv").text)))
    assert [row["id"] for row in rows] == ids.split(",")
    assert rows[1]["label"] == "'=1+1"
    assert (rows[1]["place"], rows[0]["n"], rows[0]["path"]) == ("sea", str(items[0].metadata["n"]), items[0].path)
    paths = export(client, ids, "paths")
    assert paths.text.splitlines() == [item.path for item in items]
    assert paths.headers["content-disposition"] == 'attachment; filename="selection.txt"'
    assert export(client, items[0].id, "original").content == items[0].file.read_bytes()
    archive = zipfile.ZipFile(io.BytesIO(export(client, ids, "zip").content))
    for number, item in enumerate(items, start=1):
        assert archive.read(f"{number:03d}-{item.file.name}") == item.file.read_bytes()


def test_missing_files_are_listed(client: TestClient, idx: index.Index) -> None:
    item = idx.items(limit=1)[0]
    idx.add([index.Item("gone", "/nowhere/a.jpg", "", {})], idx.vectors([item.id]))
    archive = zipfile.ZipFile(io.BytesIO(export(client, f"gone,{item.id}", "zip").content))
    assert sorted(archive.namelist()) == [f"002-{item.file.name}", "missing.txt"]
    assert b"a.jpg: the picture of this item is missing" in archive.read("missing.txt")


@pytest.mark.parametrize(
    ("ids", "kind", "status", "message"),
    [
        ("", "csv", 422, "nothing is selected"),
        ("a b", "csv", 422, "ids must be at most 20,000"),
        (",".join(f"i{n}" for n in range(20_001)), "csv", 422, "ids must be at most 20,000"),
        (",".join(f"i{n}" for n in range(401)), "zip", 422, "ids must be at most 400 ids of items for a zip"),
        ("nobody", "csv", 404, "no item with this id"),
        ("nobody", "exe", 422, "kind must be csv, paths, zip or original"),
        ("a,b", "original", 422, "original is the file of one item"),
    ],
)
def test_what_is_refused(client: TestClient, ids: str, kind: str, status: int, message: str) -> None:
    answer = export(client, ids, kind)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]


def test_paths_need_a_write_key(idx: index.Index, served_model: TrainedModel) -> None:
    item = idx.items(limit=1)[0]
    app = create_app(idx, served_model, keys=Keys(read=(READ,), write=(WRITE,)))
    with TestClient(app, base_url="http://127.0.0.1") as keyed:
        for key, status in ((READ, (401, 403)), (WRITE, (200,))):
            assert export(keyed, item.id, "paths", **{"X-API-Key": key}).status_code in status
