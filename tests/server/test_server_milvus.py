"""The same server on an index in Milvus: every answer is that of the server on the FAISS index of the same items."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from lookalike import index
from lookalike.index.reranking import METHODS
from lookalike.inference.model import TrainedModel
from lookalike.server import create_app

try:
    import milvus_lite  # noqa: F401
    import pymilvus  # noqa: F401
except ImportError:
    warnings.warn("SERVING FROM MILVUS IS NOT TESTED: pip install 'pymilvus[milvus_lite]'", stacklevel=1)
    pytest.skip("NOT TESTED: Milvus is not installed, pip install 'pymilvus[milvus_lite]'", allow_module_level=True)


@pytest.fixture
def other(
    served_run: Path, idx: index.Index, vectors: tuple[list[Path], np.ndarray], tmp_path: Path
) -> Iterator[index.Index]:
    """The items of ``idx`` in a file of Milvus, put there in another order."""
    items = idx.get([index.file_id(file) for file in vectors[0]])
    with index.create(tmp_path / "in_milvus.idx", run=served_run, store=str(tmp_path / "items.db")) as made:
        assert made.add([item for item in items[::-1] if item], vectors[1][::-1]) == 64
        yield made


@pytest.fixture
def milvus(other: index.Index, served_model: TrainedModel) -> Iterator[TestClient]:
    with TestClient(create_app(other, served_model), base_url="http://127.0.0.1") as made:
        yield made


def hits(client: TestClient, picture: bytes | None = None, **fields: Any) -> list[dict[str, Any]]:
    form = {name: (None, str(value)) for name, value in fields.items()}
    answer = client.post("/search", files=form if picture is None else {**form, "picture": ("x.png", picture)})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["hits"]
    return found


def same_hits(one: TestClient, two: TestClient, picture: bytes | None = None, **fields: Any) -> list[dict[str, Any]]:
    """What both find, in the same order, at the same distances."""
    found, again = hits(one, picture, **fields), hits(two, picture, **fields)
    distances = [[hit.pop("distance") for hit in each] for each in (found, again)]
    assert found == again
    np.testing.assert_allclose(*distances, atol=1e-6)
    return found


def test_searches(client: TestClient, milvus: TestClient, idx: index.Index, upload: bytes) -> None:
    item_id = idx.items()[11].id
    for where in ("", "label=class5", "label in (class1, class2), n<3", "label!=class3, n>=4"):
        count = idx.count(where or None)
        itself = idx.count(f"id={item_id}{where and ', '}{where}")
        assert len(same_hits(client, milvus, upload, k=200, where=where)) == count
        assert len(same_hits(client, milvus, id=item_id, k=200, where=where)) == count - itself
        same_hits(client, milvus, upload, k=7, where=where, crop="0.25,0,0.5,1")
        same_hits(client, milvus, id=item_id, k=7, where=where, crop="0,0.5,1,0.5")
        for method in METHODS:
            assert same_hits(client, milvus, upload, k=6, where=where, rerank=method)
            assert same_hits(client, milvus, id=item_id, k=6, where=where, rerank=method)


def test_unknown_metadata_keys_are_refused(client: TestClient, milvus: TestClient, upload: bytes) -> None:
    for where in ("lable=class1", "N>3"):
        here, there = (
            each.post("/search", files={"picture": upload}, data={"where": where}) for each in (client, milvus)
        )
        assert (there.status_code, there.json()) == (here.status_code, here.json())
        assert there.status_code == 422
        assert "did you mean" in there.json()["error"]["message"]


def test_listings_pictures_and_map(client: TestClient, milvus: TestClient, idx: index.Index) -> None:
    item_id = idx.items()[40].id
    for address in ("/labels", "/healthz", f"/items/{item_id}", "/items?limit=200", "/items?limit=9&where=n>=3"):
        assert milvus.get(address).json() == client.get(address).json()
    after = ""
    seen: list[str] = []
    while True:
        page = milvus.get("/items", params={"limit": 10, "after": after}).json()
        seen += [item["id"] for item in page["items"]]
        if (after := page["next"]) is None:
            break
    assert seen == [item.id for item in idx.items()]
    card = milvus.get("/model").json()
    assert card.pop("index") == {"kind": "flat", "count": 64, "backend": "milvus"}
    assert card == {name: value for name, value in client.get("/model").json().items() if name != "index"}
    here, there = (each.get(f"/items/{item_id}/image?side=24") for each in (client, milvus))
    assert there.status_code == 200
    assert (there.content, there.headers["etag"]) == (here.content, here.headers["etag"])
    here, there = (each.get("/map").json() for each in (client, milvus))
    for name in ("ids", "names", "labels", "label"):
        assert here[name] == there[name]
    np.testing.assert_allclose([here["x"], here["y"]], [there["x"], there["y"]], atol=8)


def test_added_replaced_and_deleted(
    client: TestClient, milvus: TestClient, other: index.Index, vectors: tuple[list[Path], np.ndarray], upload: bytes
) -> None:
    fields = {"label": "new", "metadata": '{"year": 2020, "tags": ["a"]}'}
    added = [each.post("/items", files={"picture": upload}, data=fields).json() for each in (client, milvus)]
    assert added[0] == added[1]
    item_id = added[1]["id"]
    assert added[1] == {"id": item_id, "created": True}
    first = same_hits(client, milvus, upload, k=12, include_query="true")[0]
    expected = {"id": item_id, "label": "new", "name": f"{item_id}.jpg", "metadata": {"year": 2020, "tags": ["a"]}}
    assert {name: first[name] for name in expected} == expected
    assert len(same_hits(client, milvus, upload, where="label=new, year=2020", include_query="true")) == 1
    assert item_id not in [hit["id"] for hit in same_hits(client, milvus, upload, k=12)]
    assert len(same_hits(client, milvus, id=item_id, k=200)) == 64
    pictures = [each.get(f"/items/{item_id}/image").content for each in (client, milvus)]
    assert pictures[0] == pictures[1]
    assert len(milvus.get("/map").json()["ids"]) == 65

    assert milvus.post("/items", files={"picture": upload}, data={"label": "renamed"}).json()["created"] is False
    assert milvus.get(f"/items/{item_id}").json()["label"] == "renamed"
    assert other.count() == 65

    indexed = index.file_id(vectors[0][9])
    for each in (client, milvus):
        assert each.delete(f"/items/{item_id}").json() == {"deleted": True}
        assert each.delete(f"/items/{indexed}").json() == {"deleted": True}
        for gone in (item_id, indexed):
            assert each.delete(f"/items/{gone}").status_code == 404
            assert each.get(f"/items/{gone}/image").status_code == 404
    assert not {item_id, indexed} & {hit["id"] for hit in same_hits(client, milvus, upload, k=200)}
    assert not list((other.path / "uploads").iterdir())
    assert vectors[0][9].exists()
    assert milvus.get("/healthz").json()["items"] == other.count() == 63
