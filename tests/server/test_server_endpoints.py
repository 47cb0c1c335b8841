"""Every endpoint, against what the index and the model say directly."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from fastapi.testclient import TestClient
from PIL import Image
from server_helpers import encoded, noise

from lookalike import index
from lookalike.index.reranking import METHODS
from lookalike.inference.model import TrainedModel, load
from lookalike.models import Embedder, create_backbone, save_model
from lookalike.server import create_app

DEPLOY = Path(__file__).parents[2] / "deploy"
Vectors = tuple[list[Path], np.ndarray]


def post(client: TestClient, path: str, picture: bytes | None = None, **fields: Any) -> Any:
    files = {} if picture is None else {"picture": ("x.jpg", picture)}
    if not files:
        files = {name: (None, str(value)) for name, value in fields.items()}  # type: ignore[misc]
        fields = {}
    answer = client.post(path, files=files, data=fields)
    assert answer.status_code == 200, answer.text
    return answer.json()


def nearest(vectors: Vectors, query: np.ndarray, k: int) -> list[str]:
    files, rows = vectors
    distances = 1 - rows.astype(np.float64) @ query / np.linalg.norm(query)
    return [index.file_id(files[i]) for i in np.argsort(distances)[:k]]


def test_search_by_picture(client: TestClient, served_model: TrainedModel, vectors: Vectors, upload: bytes) -> None:
    query = served_model.embed(Image.open(io.BytesIO(upload)))[0]
    answer = post(client, "/search", upload, k=5)
    assert [hit["id"] for hit in answer["hits"]] == nearest(vectors, query, 5)
    first = answer["hits"][0]
    assert set(first) == {"id", "label", "name", "metadata", "distance", "probability", "duplicates", "mark", "verdict"}
    row = vectors[1][[index.file_id(file) for file in vectors[0]].index(first["id"])]
    assert first["distance"] == pytest.approx(1 - float(row @ query), abs=1e-5)
    assert answer["took_ms"] > 0
    assert len(post(client, "/search", upload)["hits"]) == 12


def test_search_by_id_leaves_the_item_out(client: TestClient, vectors: Vectors) -> None:
    item_id = index.file_id(vectors[0][3])
    expected = nearest(vectors, vectors[1][3], 7)
    assert expected[0] == item_id
    assert [hit["id"] for hit in post(client, "/search", id=item_id, k=6)["hits"]] == expected[1:]
    filtered = post(client, "/search", id=item_id, k=200, where="label in (class1, class2), n<3")["hits"]
    assert {(hit["label"], hit["metadata"]["n"]) for hit in filtered} == {
        (f"class{c}", n) for c in (1, 2) for n in range(3)
    }
    assert len(post(client, "/search", id=item_id, k=200)["hits"]) == 63


def test_unknown_metadata_keys_are_refused(client: TestClient, upload: bytes, idx: index.Index) -> None:
    def refused(where: str) -> str:
        answer = client.post("/search", files={"picture": upload}, data={"where": where})
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "invalid")
        listed = client.get("/items", params={"where": where})
        assert (listed.status_code, listed.json()) == (422, answer.json())
        return str(answer.json()["error"]["message"])

    said = "where: no picture of the index has the key {}{} There are id, label, n"  # and no word of paths
    assert refused("lable=class1") == said.format("lable", "; did you mean label?")
    assert refused("label=class1, N=3") == said.format("N", "; did you mean n?")
    assert refused("altitude>3") == said.format("altitude", ".")
    for where in (
        "n=77",
        "label=nobody",
        "id=nobody",
        "lable!=class1, n<100",
    ):  # nothing wrong with the keys, or a match
        hits = post(client, "/search", upload, k=100, where=where)["hits"]
        assert len(hits) == (64 if "!=" in where else 0)
    added = post(client, "/items", upload, metadata='{"altitude": 1}')["id"]
    assert post(client, "/search", upload, where="altitude>3")["hits"] == []
    client.delete(f"/items/{added}")
    assert refused("altitude>3") == said.format("altitude", ".")
    idx.delete([item.id for item in idx.items()])
    assert post(client, "/search", upload, where="lable=class1")["hits"] == []


def test_search_in_a_region(client: TestClient, served_model: TrainedModel, vectors: Vectors, upload: bytes) -> None:
    region = Image.open(io.BytesIO(upload)).crop((10, 0, 30, 30))  # of 40 x 30
    expected = nearest(vectors, served_model.embed(region)[0], 4)
    assert [hit["id"] for hit in post(client, "/search", upload, k=4, crop="0.25,0,0.5,1")["hits"]] == expected
    assert expected != [hit["id"] for hit in post(client, "/search", upload, k=4)["hits"]]
    item_id = index.file_id(vectors[0][5])
    region = Image.open(vectors[0][5]).crop((0, 16, 32, 32))
    expected = [each for each in nearest(vectors, served_model.embed(region)[0], 5) if each != item_id][:4]
    assert [hit["id"] for hit in post(client, "/search", id=item_id, k=4, crop="0,0.5,1,0.5")["hits"]] == expected


def test_search_with_expansion(client: TestClient, served_model: TrainedModel, vectors: Vectors, upload: bytes) -> None:
    """The mean of the query and its ten nearest, each weighed by the cube of its cosine."""
    query = served_model.embed(Image.open(io.BytesIO(upload)))[0].astype(np.float64)
    cosines = vectors[1] @ query
    chosen = np.argsort(-cosines)[:10]
    moved = query + (cosines[chosen, None].clip(0) ** 3 * vectors[1][chosen]).sum(0)
    hits = post(client, "/search", upload, k=20, rerank="expansion")["hits"]
    assert [hit["id"] for hit in hits] == nearest(vectors, moved, 20) != nearest(vectors, query, 20)
    places = [[index.file_id(file) for file in vectors[0]].index(hit["id"]) for hit in hits]
    np.testing.assert_allclose([hit["distance"] for hit in hits], 1 - cosines[places], atol=1e-5)


def test_re_ranking_equals_the_index(
    client: TestClient, idx: index.Index, served_model: TrainedModel, vectors: Vectors, upload: bytes
) -> None:
    query, item_id = served_model.embed(Image.open(io.BytesIO(upload))), index.file_id(vectors[0][3])
    orders = []
    for method in METHODS:
        (wanted,) = index.search_reranked(idx, query, 9, "n<6", method)
        found = post(client, "/search", upload, k=9, where="n<6", rerank=method)["hits"]
        assert [hit["id"] for hit in found] == [hit.item.id for hit in wanted]
        (wanted,) = index.search_reranked(idx, vectors[1][3:4], 30, None, method, without=item_id)
        orders.append([hit["id"] for hit in post(client, "/search", id=item_id, k=30, rerank=method)["hits"]])
        assert orders[-1] == [hit.item.id for hit in wanted]
        assert item_id not in orders[-1]
    assert len(set(map(tuple, orders))) == len(METHODS)


def test_re_ranking_while_items_are_deleted(
    client: TestClient, idx: index.Index, upload: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = post(client, "/search", upload, rerank="reciprocal")["hits"]
    given, failing = idx.vectors, [True]

    def vectors(ids: list[str]) -> Any:
        if failing and (len(failing) > 1 or failing.pop()):
            raise KeyError(ids[0])
        return given(ids)

    monkeypatch.setattr(idx, "vectors", vectors)
    assert post(client, "/search", upload, rerank="reciprocal")["hits"] == expected
    assert not failing, "it was asked again"
    failing += [True, True]
    answer = client.post("/search", files={"picture": upload}, data={"rerank": "reciprocal"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "busy")


def test_embed(client: TestClient, served_model: TrainedModel, upload: bytes) -> None:
    answer = post(client, "/embed", upload)
    assert answer["dim"] == len(answer["vector"]) == 8
    np.testing.assert_allclose(answer["vector"], served_model.embed(Image.open(io.BytesIO(upload)))[0], atol=1e-5)
    region = Image.open(io.BytesIO(upload)).crop((0, 15, 40, 30))
    np.testing.assert_allclose(
        post(client, "/embed", upload, crop="0,0.5,1,0.5")["vector"], served_model.embed(region)[0], atol=1e-5
    )


def test_embed_large_and_rotated_jpegs(client: TestClient, served_model: TrainedModel, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    blurred = noise(30, 20).resize((900, 600), Image.Resampling.BICUBIC)
    data = encoded(blurred, "JPEG", exif=exif)
    (tmp_path / "turned.jpg").write_bytes(data)
    expected = served_model.embed(tmp_path / "turned.jpg")[0]
    np.testing.assert_allclose(post(client, "/embed", data)["vector"], expected, atol=1e-5)
    assert float(served_model.embed(blurred)[0] @ expected) < 0.9999, "turning must matter here"


def test_explain_covers_the_whole_picture(client: TestClient, served_model: TrainedModel) -> None:
    picture = noise(90, 30)
    answer = post(client, "/explain", encoded(picture))
    weights = np.array(answer["weights"])
    assert weights.shape == (answer["rows"], answer["columns"]) == (19, 56)
    assert weights.sum() == pytest.approx(1, abs=1e-5)
    assert weights.min() >= 0
    # the model sees the middle square: nothing left and right of it, something inside
    assert weights[:, :18].sum() == weights[:, 38:].sum() == 0
    explained = served_model.explain(picture)
    half = explained.weights[:, :45].sum()
    assert weights[:, :28].sum() == pytest.approx(float(half), abs=1e-4)
    assert len(answer["attributes"]) == 8
    np.testing.assert_allclose(answer["attributes"], explained.attributes, atol=1e-5)


def test_explain_of_a_region_leaves_the_rest_without_weight(client: TestClient, served_model: TrainedModel) -> None:
    picture = noise(80, 40)
    weights = np.array(post(client, "/explain", encoded(picture), crop="0.5,0,0.5,1")["weights"])
    assert weights.shape == (28, 56)
    assert weights.sum() == pytest.approx(1, abs=1e-5)
    assert weights[:, :28].sum() == 0
    explained = served_model.explain(picture.crop((40, 0, 80, 40)))
    for cut in (10, 20, 30):
        assert weights[:, 28:].sum(0)[: round(cut * 0.7)].sum() == pytest.approx(
            float(explained.weights[:, :cut].sum()), abs=1e-4
        )


def test_explain_by_id_and_of_a_large_picture(client: TestClient, served_model: TrainedModel, vectors: Vectors) -> None:
    answer = post(client, "/explain", id=index.file_id(vectors[0][0]))
    assert (answer["rows"], answer["columns"]) == (56, 56)
    assert (answer["grid_rows"], answer["grid_columns"]) == served_model.explain(vectors[0][0]).grid.shape
    large = noise(30, 20).resize((900, 600), Image.Resampling.BICUBIC)
    answer = post(client, "/explain", encoded(large))
    expected = served_model.explain(large).weights
    assert np.array(answer["weights"])[:, :28].sum() == pytest.approx(float(expected[:, :450].sum()), abs=0.02)
    assert np.array(answer["weights"]).sum() == pytest.approx(1, abs=1e-5)


def test_explain_without_weights_gets_409(tmp_path: Path, upload: bytes) -> None:
    save_model(Embedder(create_backbone("resnet8-half"), dim=None, pooling="gsop"), tmp_path / "run")
    model = load(tmp_path / "run", "cpu")
    with index.create(tmp_path / "plain.idx", run=tmp_path / "run") as idx:
        client = TestClient(create_app(idx, model), base_url="http://localhost")
        answer = client.post("/explain", files={"picture": upload})
        assert answer.status_code == 409
        assert answer.json() == {"error": {"code": "no_weights", "message": "this model's pooling has no weights"}}
        card = client.get("/model").json()
        assert card["has_weights"] is False
        assert card["figures"] is card["trained_on"] is card["classes"] is card["steps"] is None
        assert client.post("/search", files={"picture": upload}).json()["hits"] == []
        assert client.get("/map").json()["ids"] == []
        assert client.get("/items").json() == {"items": [], "next": None}


def test_model_card(client: TestClient, idx: index.Index, served_run: Path) -> None:
    card = client.get("/model").json()
    best = json.loads((served_run / "figures.json").read_text())["best"]
    assert card.pop("figures") == {name: value for name, value in best.items() if "@" in name}
    assert card.pop("baseline") is not None
    steps = card.pop("steps")
    assert steps == json.loads((served_run / "figures.json").read_text())["best_step"]
    assert card.pop("trained_on").startswith("folder pictures")
    assert card == {
        "name": "striped",
        "backbone": "resnet8-half",
        "pooling": "gsp",
        "dim": 8,
        "input_size": 32,
        "view": "crop",
        "distance": "cosine",
        "classes": 6,
        "fingerprint": idx.fingerprint,
        "has_weights": True,
        "can_match": True,
        "may_write": True,
        "calibration": None,
        "models": ["striped"],
        "text_refusal": "the backbone resnet8-half has no text tower: an index made with open_clip:ViT-B-32 and its "
        "weights has one",
        "index": {"kind": "flat", "count": 64, "backend": "faiss"},
    }


def test_items_page_by_page(client: TestClient, idx: index.Index) -> None:
    seen: list[str] = []
    after = ""
    while True:
        page = client.get("/items", params={"limit": 10, "after": after, "where": "n>=1"}).json()
        seen += [item["id"] for item in page["items"]]
        if page["next"] is None:
            break
        assert page["next"] == seen[-1]
        assert len(page["items"]) == 10
        after = page["next"]
    assert seen == [item.id for item in idx.items(where="n>=1")]
    one = client.get(f"/items/{seen[0]}").json()
    item = idx.get([seen[0]])[0]
    assert item is not None
    assert one == {"id": item.id, "label": item.label, "name": item.file.name, "metadata": item.metadata}


def test_labels_health_and_map(client: TestClient, idx: index.Index, vectors: Vectors) -> None:
    labels = client.get("/labels").json()["labels"]
    assert labels == [{"label": f"class{c}", "count": 8} for c in range(8)]
    assert client.get("/healthz").json() == {"status": "ok", "items": 64, "model": idx.fingerprint}
    drawn = client.get("/map").json()
    assert drawn["sampled"] is False
    assert drawn["method"] == "pca"
    by_id = {item_id: row for row, item_id in enumerate(drawn["ids"])}
    for item in idx.items():
        row = by_id.pop(item.id)
        assert drawn["names"][row] == item.file.name
        assert drawn["labels"][drawn["label"][row]] == item.label
    assert not by_id
    rows = [drawn["ids"].index(index.file_id(file)) for file in vectors[0]]
    places = np.array([drawn["x"], drawn["y"]]).T[rows] / 65535
    assert places.min() >= 0
    assert places.max() <= 1
    assert np.ptp(places, axis=0).max() == pytest.approx(1)
    centred = vectors[1] - vectors[1].mean(0)  # by another way: singular vectors
    scores = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
    for axis in (0, 1):
        assert abs(np.corrcoef(places[:, axis], scores[:, axis])[0, 1]) == pytest.approx(1, abs=1e-4)
    assert client.get("/map").json() == drawn
    client.delete(f"/items/{index.file_id(vectors[0][0])}")
    assert len(client.get("/map").json()["ids"]) == 63


def test_add_search_show_and_delete(client: TestClient, idx: index.Index, upload: bytes) -> None:
    added = post(client, "/items", upload, label="new", metadata='{"year": 2020, "tags": ["a"]}')
    assert added["created"] is True
    item_id = added["id"]
    hit = post(client, "/search", upload, k=1, include_query="true")["hits"][0]
    assert (hit["id"], hit["label"], hit["name"]) == (item_id, "new", f"{item_id}.jpg")
    assert hit["metadata"] == {"year": 2020, "tags": ["a"]}
    assert hit["distance"] == pytest.approx(0, abs=1e-5)
    file = idx.path / "uploads" / f"{item_id}.jpg"
    assert Image.open(file).size == (40, 30)
    assert client.get(f"/items/{item_id}/image").status_code == 200

    again = post(client, "/items", upload, label="other")
    assert again == {"id": item_id, "created": False}
    assert client.get(f"/items/{item_id}").json()["label"] == "other"
    assert idx.count() == 65

    assert client.delete(f"/items/{item_id}").json() == {"deleted": True}
    assert not file.exists()
    assert client.delete(f"/items/{item_id}").status_code == 404
    assert client.get(f"/items/{item_id}/image").status_code == 404
    assert idx.count() == 64


def test_indexed_files_are_not_added_again(client: TestClient, idx: index.Index, vectors: Vectors) -> None:
    file = vectors[0][9]
    before = client.get(f"/items/{index.file_id(file)}").json()
    assert post(client, "/items", file.read_bytes(), label="x") == {"id": index.file_id(file), "created": False}
    assert client.get(f"/items/{index.file_id(file)}").json() == before
    assert idx.count() == 64
    assert not list((idx.path / "uploads").glob("*"))
    file_again = file.read_bytes() + b" "  # not the same file, though the same picture
    assert post(client, "/items", file_again)["created"] is True


def test_delete_keeps_indexed_files(client: TestClient, vectors: Vectors) -> None:
    file = vectors[0][9]
    assert client.delete(f"/items/{index.file_id(file)}").status_code == 200
    assert file.exists()
    assert client.get(f"/items/{index.file_id(file)}").status_code == 404


def test_images_are_jpegs_with_etags(client: TestClient, vectors: Vectors) -> None:
    address = f"/items/{index.file_id(vectors[0][0])}/image"
    answer = client.get(address)
    assert answer.headers["content-type"] == "image/jpeg"
    sent = np.asarray(Image.open(io.BytesIO(answer.content)), np.float64)
    original = np.asarray(Image.open(vectors[0][0]), np.float64)
    assert sent.shape == original.shape
    assert np.abs(sent.mean((0, 1)) - original.mean((0, 1))).max() < 3
    small = client.get(address, params={"side": 16})
    assert Image.open(io.BytesIO(small.content)).size == (16, 16)
    assert small.headers["etag"] != answer.headers["etag"]
    assert client.get(address, headers={"If-None-Match": answer.headers["etag"]}).status_code == 304
    for side in (0, 15, 4097):
        assert client.get(address, params={"side": side}).status_code == 422


def test_missing_or_replaced_files_get_410(
    client: TestClient, idx: index.Index, tmp_path: Path, upload: bytes, vectors: Vectors
) -> None:
    file = tmp_path / "was.png"
    file.write_bytes(upload)
    idx.add([index.file_item(file)], vectors[1][:1])
    address = f"/items/{index.file_id(file)}/image"
    assert client.get(address).status_code == 200
    file.write_text("root:x:0:0")
    answer = client.get(address)
    assert answer.status_code == 410
    assert "root" not in answer.text
    assert str(tmp_path) not in answer.text
    file.unlink()
    file.symlink_to("/etc/passwd")
    assert client.get(address).status_code == 410
    file.unlink()
    assert client.get(address).status_code == 410
    assert client.post("/explain", files={"id": (None, index.file_id(file))}).status_code == 410


def test_metrics(client: TestClient, upload: bytes) -> None:
    post(client, "/embed", upload)
    client.get("/items/nothing-like-it")
    client.get("/some/made/up/path")
    text = client.get("/metrics").text
    assert 'lookalike_requests_total{method="POST",route="/embed",status="200"} 1.0' in text
    assert 'lookalike_requests_total{method="GET",route="/items/{id}",status="404"} 1.0' in text
    assert 'route="unmatched",status="404"' in text
    assert "made" not in text
    assert 'lookalike_request_seconds_count{route="/embed"} 1.0' in text
    assert "lookalike_batch_pictures_count 1.0" in text
    assert "lookalike_queue_length 0.0" in text
    assert "lookalike_items 64.0" in text
    assert "lookalike_requests_in_flight 1.0" in text


def test_static_files_of_the_page(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert client.get("/", headers={"If-None-Match": page.headers["etag"]}).status_code == 304
    for name in ("nothing.js", "..%2fapp.py", "__init__.py", "%2e%2e", "index.html%00.js"):
        assert client.get(f"/assets/{name}").status_code == 404


def test_while_another_process_writes(
    client: TestClient, index_folder: Path, idx: index.Index, upload: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with index.open(index_folder) as other, other.writing():  # another lock on the same file, as another process has it
        for answer in (client.post("/items", files={"picture": upload}), client.delete(f"/items/{idx.items()[0].id}")):
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] == "busy"
            assert answer.headers["retry-after"]
        assert len(post(client, "/search", upload)["hits"]) == 12, "readers go on"
    assert not list((index_folder / "uploads").glob("*")), "what was refused is not kept"
    assert idx.count() == 64
    assert post(client, "/items", upload)["created"] is True

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(index_folder))

    monkeypatch.setattr(idx, "delete", full)
    answer = client.delete(f"/items/{idx.items()[0].id}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert str(index_folder) not in answer.text


def test_health_and_readiness(client: TestClient, idx: index.Index, monkeypatch: pytest.MonkeyPatch) -> None:
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/ready").json() == {"status": "ready", "writes": True}

    def fail(*_: object) -> int:
        raise OSError("the disk is gone")

    monkeypatch.setattr(idx, "count", fail)
    answer = client.get("/ready")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert client.get("/health").status_code == 200  # starting it again would not help


def test_a_replica_changes_nothing(idx: index.Index, served_model: TrainedModel, upload: bytes) -> None:
    """Whatever it refuses, the proxies in ``deploy/`` send to the writer."""
    app = create_app(idx, served_model, read_only=True)
    with TestClient(app, base_url="http://127.0.0.1") as replica:
        assert replica.get("/ready").json() == {"status": "ready", "writes": False}
        item_id = idx.items()[0].id
        refused = set()
        for path, methods in app.openapi()["paths"].items():
            for method in methods:
                filled = path.replace("{id}", item_id).replace("{name}", "x")
                answer = replica.request(method, filled)
                if answer.status_code == 403:
                    assert answer.json()["error"]["code"] == "replica"
                    refused.add(f"{method} {path}".upper())
                    assert sent_to(method.upper(), filled) == {"writer"}, path
        assert refused >= {"POST /ITEMS", "DELETE /ITEMS/{ID}", "POST /MARKS", "POST /LABELS/SET", "DELETE /IMPROVE"}
        for method, path in (("POST", "/search"), ("GET", "/items"), ("GET", "/labels"), ("GET", "/"), ("GET", "/map")):
            assert sent_to(method, path) == {"replica"}, path
        for path in (
            "/marks",
            "/marks/next",
            "/labels/history",
            "/improve",
            "/doctor",
        ):  # files that a copy does not have
            assert sent_to("GET", path) == {"writer"}, path
        assert replica.post("/search", files={"picture": upload}).status_code == 200
        assert idx.count() == 64


def sent_to(method: str, path: str) -> set[str]:
    """Where nginx and the Gateway send a request: the writer, a replica, or (a fault) one each."""
    nginx = "replica"
    for pattern, target in re.findall(r'"~(\S+)"\s+(\w+);', (DEPLOY / "nginx.conf").read_text()):
        if re.search(pattern, f"{method}:{path}"):
            nginx = target
            break
    documents = yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())
    (route,) = [document for document in documents if document["kind"] == "HTTPRoute"]
    matches = []
    for rule in route["spec"]["rules"]:
        (backend,) = rule["backendRefs"]
        for match in rule["matches"]:
            kind, value = match["path"]["type"], match["path"]["value"]
            below = value.rstrip("/") + "/"
            matches_path = path == value if kind == "Exact" else path == value or path.startswith(below)
            if matches_path and match.get("method", method) == method:
                # the order of the Gateway API: exact paths, then the longest prefix, then those with a method
                rank = (kind == "Exact", len(value), "method" in match)
                matches.append((rank, backend["name"].removeprefix("lookalike-")))
    return {nginx, max(matches)[1]}
