"""The map over HTTP: areas, the place of a query, compression, and layouts that are computed in the background."""

import gzip
import time
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient

from lookalike import index
from lookalike.index.layout_file import FILE, read_layout
from lookalike.inference.model import TrainedModel
from lookalike.server import create_app
from lookalike.server.polygon import inside, read_corners
from lookalike.training.verify import verify

PATIENCE = 400  # seconds


@pytest.fixture
def crowd(idx: index.Index) -> index.Index:
    """An index of 160 items: enough for a layout of its own."""
    rng = np.random.default_rng(5)
    vectors = rng.normal(size=(96, 8)).astype(np.float32)
    idx.add([index.Item(f"more{row:02}", f"/nowhere/{row}.jpg", f"class{row % 8}") for row in range(96)], vectors)
    return idx


def served(idx: index.Index, model: TrainedModel, **settings: Any) -> TestClient:
    return TestClient(create_app(idx, model, **settings), base_url="http://127.0.0.1")


def finished(client: TestClient) -> dict[str, Any]:
    until = time.monotonic() + PATIENCE
    while client.get("/map/progress").json()["progress"] is not None:
        assert time.monotonic() < until
        time.sleep(0.05)
    answer: dict[str, Any] = client.get("/map").json()
    return answer


def in_polygon(x: float, y: float, corners: list[tuple[int, int]]) -> bool:
    """By the sum of the angles to the corners."""
    angles = np.array([np.arctan2(b - y, a - x) for a, b in corners])
    turns = (np.roll(angles, -1) - angles + np.pi) % (2 * np.pi) - np.pi
    return abs(float(turns.sum())) > np.pi


def test_polygon_equals_angles() -> None:
    rng = np.random.default_rng(0)
    points = rng.integers(0, 65536, (400, 2))
    corners = [(3000, 2000), (60000, -500), (30000, 20000), (65000, 50001), (20003, 65000), (25000, 30000)]
    expected = [in_polygon(x + 1e-4, y + 1e-4, corners) for x, y in points.tolist()]
    assert inside(points, corners).tolist() == expected
    assert 50 < sum(expected) < 350


def test_searches_in_an_area(shared: TestClient, shared_index: index.Index, upload: bytes) -> None:
    drawn = shared.get("/map").json()
    corners = [(10_000, 5_000), (60_000, 12_000), (45_000, 60_000), (5_000, 40_000)]
    rows = [row for row in range(64) if in_polygon(drawn["x"][row] + 1e-4, drawn["y"][row] + 1e-4, corners)]
    wanted = {drawn["ids"][row] for row in rows}
    assert 5 < len(wanted) < 60
    area = {"area": ";".join(f"{x},{y}" for x, y in corners), "map": drawn["revision"]}
    listed = shared.get("/items", params={**area, "limit": 200}).json()["items"]
    assert {item["id"] for item in listed} == wanted
    found = shared.post("/search", files={"picture": upload}, data={**area, "k": "200"}).json()
    assert {hit["id"] for hit in found["hits"]} == wanted
    some = shared.get("/items", params={**area, "limit": 200, "where": "label=class3"}).json()["items"]
    assert {item["id"] for item in some} == {item.id for item in shared_index.items("label=class3")} & wanted

    old = shared.get("/items", params={**area, "map": "0" * 16})
    assert (old.status_code, old.json()["error"]["code"]) == (409, "map_changed")
    for bad in ("1,2;3,4", "1,2;3,4;x", "1,2;3,4;5", ";".join(["1,2"] * 201), "1,2;3,4;9999999,1", "1,2;" * 2000):
        refused = shared.post("/search", files={"picture": upload}, data={**area, "area": bad})
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "invalid")
    assert read_corners("0,-1;65535,2;3,4") == [(0, -1), (65535, 2), (3, 4)]


def test_the_place_of_a_query(shared: TestClient, upload: bytes) -> None:
    drawn = shared.get("/map").json()
    answer = shared.post("/search", files={"picture": upload}, data={"k": "5"}).json()
    rows = [drawn["ids"].index(hit["id"]) for hit in answer["hits"]]
    expected = np.median(np.array([drawn["x"], drawn["y"]])[:, rows], axis=1) / 65535
    assert answer["place"] == pytest.approx(expected.tolist())


def test_compressed_for_those_who_accept_it(shared: TestClient) -> None:
    with shared.stream("GET", "/map", headers={"Accept-Encoding": "gzip"}) as answer:
        assert answer.headers["content-encoding"] == "gzip"
        content = gzip.decompress(b"".join(answer.iter_raw()))
    plain = shared.get("/map", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert plain.content == content


def test_a_layout_in_the_background_is_stored(
    crowd: index.Index, served_model: TrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(crowd, served_model, layout="tsne") as client:
        assert client.get("/map/progress").json() == {"revision": "", "method": "pca", "progress": None}
        first = client.get("/map").json()
        assert first["method"] == "pca"
        assert len(first["ids"]) == 160
        better = finished(client)
    assert better["method"] == "tsne"
    assert better["revision"] != first["revision"]
    assert (better["ids"], better["label"]) == (first["ids"], first["label"])
    stored = read_layout(crowd.path / FILE)
    assert stored is not None
    np.testing.assert_array_equal(np.rint(stored.points * 65535), np.array([better["x"], better["y"]]).T)
    assert ("map.bin", "ok") in [finding[:2] for finding in verify(crowd.path)]

    with served(crowd, served_model, layout="tsne") as client:  # nothing is computed again ...
        monkeypatch.setattr("subprocess.Popen", None)
        assert client.get("/map").json() == better
        crowd.add([crowd.items(limit=1)[0]._replace(label="other")], crowd.vectors([better["ids"][0]]))
        relabelled = client.get("/map").json()  # ... also not for another label
        assert (relabelled["x"], relabelled["revision"]) == (better["x"], better["revision"])
        assert "other" in relabelled["labels"]
        monkeypatch.undo()
        crowd.delete([better["ids"][0]])
        after = client.get("/map").json()  # ... but without an item
        assert (after["method"], len(after["ids"])) == ("pca", 159)
        assert finished(client)["method"] == "tsne"

    content = (crowd.path / FILE).read_bytes()
    (crowd.path / FILE).write_bytes(content[:-9] + bytes([content[-9] ^ 8]) + content[-8:])
    assert ("map.bin", "damaged") in [finding[:2] for finding in verify(crowd.path)]
    with served(crowd, served_model, layout="tsne") as client:
        assert client.get("/map").json()["method"] == "pca"
        assert finished(client)["ids"] == after["ids"]


def test_a_killed_process_and_a_closed_server(
    crowd: index.Index, served_model: TrainedModel, caplog: pytest.LogCaptureFixture
) -> None:
    app = create_app(crowd, served_model, layout="tsne")
    with TestClient(app, base_url="http://127.0.0.1") as client:
        client.get("/map")
        drawer = app.state.context.map
        until = time.monotonic() + PATIENCE
        while drawer._process is None:
            assert time.monotonic() < until
            time.sleep(0.01)
        drawer._process.kill()
        assert finished(client)["method"] == "pca"
        assert "could not be computed" in caplog.text
        assert client.get("/map/progress").json()["progress"] is None  # it does not try again and again
        crowd.delete([crowd.items(limit=1)[0].id])
        client.get("/map")
        while drawer._process is None:
            assert time.monotonic() < until
            time.sleep(0.01)
        process = drawer._process
    assert process.wait(PATIENCE) != 0
    assert not (crowd.path / FILE).exists()


def test_an_unknown_layout_is_refused(idx: index.Index, served_model: TrainedModel) -> None:
    with pytest.raises(ValueError, match="one of auto, umap, tsne, pca"):
        create_app(idx, served_model, layout="grid")  # type: ignore[arg-type]
