"""Requests that try to cost more than their size: numbers, metadata, filters and method names."""

import json
import logging
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from server_helpers import encoded, noise

from lookalike import index
from lookalike.inference.model import TrainedModel
from lookalike.server import create_app
from lookalike.server.metrics import METHODS, Metrics

TOO_LARGE_K = ["00000001299999", "000000001500", "201", "0" * 4000 + "999", "9" * 5000]
NOT_A_NUMBER = ["٣", "1_0", "+5", "-1", "5.0", "1e1", "nan", "inf", "0x5", "³", "5 5", "true", "[5]", "0"]


@pytest.mark.parametrize("k", [*TOO_LARGE_K, *NOT_A_NUMBER])
def test_k_is_parsed_then_checked(shared: TestClient, upload: bytes, k: str) -> None:
    answer = shared.post("/search", files={"picture": upload}, data={"k": k})
    assert answer.status_code == 422
    assert "whole number from 1 to 200" in answer.json()["error"]["message"]


def test_k_with_leading_zeros_is_a_number(shared: TestClient, upload: bytes) -> None:
    answer = shared.post("/search", files={"picture": upload}, data={"k": "0" * 300 + "3"})
    assert len(answer.json()["hits"]) == 3


@pytest.mark.parametrize("number", [*NOT_A_NUMBER, "000000000000501", "9" * 5000])
def test_numbers_in_queries_are_parsed_then_checked(shared: TestClient, number: str) -> None:
    assert shared.get("/items", params={"limit": number}).status_code == 422
    item_id = shared.get("/items", params={"limit": "0001"}).json()["items"][0]["id"]
    side = {"000000000000501": "0000000004097"}.get(number, number)
    assert shared.get(f"/items/{item_id}/image", params={"side": side}).status_code == 422


@pytest.mark.parametrize(
    "number", ["nan", "inf", "-inf", "\u0660", "0_0", "+0", "-0.1", "0x0", "1e-999", "", "1e99", "9" * 400]
)
def test_numbers_of_a_crop_are_plain(shared: TestClient, upload: bytes, number: str) -> None:
    answer = shared.post("/embed", files={"picture": upload}, data={"crop": f"{number},0,0.5,1"})
    assert answer.status_code == 422


def nested(depth: int, kind: str) -> str:
    """JSON of an object that holds lists or objects; ``depth`` levels in all."""
    if kind == "lists":
        return '{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}"
    return '{"a":' * depth + "1" + "}" * depth


@pytest.mark.parametrize("kind", ["lists", "objects"])
@pytest.mark.parametrize("depth", [33, 254, 260, 900, 1100, 2600])
def test_deep_metadata_are_refused(client: TestClient, upload: bytes, depth: int, kind: str) -> None:
    answer = client.post("/items", files={"picture": upload}, data={"metadata": nested(depth, kind)})
    assert answer.status_code == 422
    assert client.get("/items", params={"limit": 500}).status_code == 200


@pytest.mark.parametrize("kind", ["lists", "objects"])
def test_the_deepest_metadata_are_listed(client: TestClient, upload: bytes, kind: str) -> None:
    text = nested(32, kind)
    item_id = client.post("/items", files={"picture": upload}, data={"metadata": text}).json()["id"]
    assert client.get(f"/items/{item_id}").json()["metadata"] == json.loads(text)
    assert client.post("/search", files={"picture": upload}).status_code == 200


@pytest.mark.parametrize(
    "metadata",
    [
        {f"k{i}": 1 for i in range(257)},
        {"a": {f"k{i}": 1 for i in range(256)}},
        {"a": 2**63},
        {"a": [{"b": -(2**63)}]},
        {"a": 10**4000},
    ],
)
def test_wide_metadata_and_huge_integers_are_refused(client: TestClient, upload: bytes, metadata: Any) -> None:
    answer = client.post("/items", files={"picture": upload}, data={"metadata": json.dumps(metadata)})
    assert answer.status_code == 422


DAMAGES = {
    "not json": "{",
    "deep": nested(900, "objects"),
    "too deep to parse": nested(100_000, "lists"),
    "a list": "[1]",
    "not a text": b"\xff\xfe",
    "lone surrogate": '{"a": "\\ud800"}',
    "infinite": '{"a": [1e999]}',
    "not a number": '{"a": {"b": NaN}}',
    "too many digits": f'{{"a": {"9" * 5000}}}',
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_rows_are_skipped_and_reported_once(
    index_folder: Path, served_model: TrainedModel, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    with index.open(index_folder) as idx:
        ids = [item.id for item in idx.items()]
    damaged = ids[1]
    with sqlite3.connect(index_folder / "items.sqlite") as connection:
        new_id = f"{damage.replace(' ', '-')}"  # one id per case: each is reported once per process
        connection.execute(  # as somebody makes it who knows how to compute a checksum, or leaves it out
            "UPDATE items SET id = ?, metadata = CAST(? AS TEXT), checksum = NULL WHERE id = ?",
            (new_id, DAMAGES[damage], damaged),
        )
    connection.close()
    good = sorted(set(ids) - {damaged})
    with index.open(index_folder) as idx:
        app = create_app(idx, served_model)
        with TestClient(app, base_url="http://127.0.0.1") as client, caplog.at_level(logging.WARNING):
            listed: list[str] = []
            after = ""
            while after is not None:  # every page is full although one row is left out
                page = client.get("/items", params={"limit": 7, "after": after}).json()
                listed += [item["id"] for item in page["items"]]
                after = page["next"]
            assert listed == good
            assert client.get(f"/items/{new_id}").status_code == 404
            for where in ("n>=0", "n!=-1", "label!=x"):
                items = client.get("/items", params={"where": where, "limit": 500}).json()["items"]
                assert [item["id"] for item in items] == good
            hits = client.post("/search", files={"id": (None, good[0])}, data={"k": 200}).json()["hits"]
            assert sorted(hit["id"] for hit in hits) == good[1:]
            assert client.get("/map").status_code == 200
            assert client.get("/labels").status_code == 200
    assert len([record for record in caplog.records if new_id in record.getMessage()]) == 1


def test_the_openapi_document_is_not_made_on_the_event_loop(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes half a second, and the first request with a wrong method needs it."""
    app: Any = client.app
    original = app.openapi
    threads = []

    def openapi() -> Any:
        threads.append(threading.current_thread())
        return original()

    async def loop_thread() -> threading.Thread:
        return threading.current_thread()

    monkeypatch.setattr(app, "openapi", openapi)
    for _ in range(2):
        answer = client.request("PUT", "/items")
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
    assert client.portal is not None
    assert threads
    assert client.portal.call(loop_thread) not in threads
    assert len(threads) == 1


def test_a_damaged_vector_is_left_out_everywhere(index_folder: Path, served_model: TrainedModel) -> None:
    with index.open(index_folder) as idx:
        ids = [item.id for item in idx.items()]
    with sqlite3.connect(index_folder / "items.sqlite") as connection:
        connection.execute(
            "UPDATE vectors SET vector = zeroblob(length(vector)) WHERE number = "
            "(SELECT number FROM items WHERE id = ?)",
            (ids[3],),
        )
    connection.close()
    with index.open(index_folder) as idx:
        app = create_app(idx, served_model)
        with TestClient(app, base_url="http://127.0.0.1") as client:
            assert sorted(client.get("/map").json()["ids"]) == sorted(set(ids) - {ids[3]})
            grouped = client.post("/search", files={"id": (None, ids[0])}, data={"k": 200, "group": "true"})
            assert grouped.status_code == 200
            assert client.post("/search", files={"id": (None, ids[3])}).status_code == 404
            assert client.get("/marks/next").status_code == 200
            assert client.get("/doctor/effect").status_code == 200


@pytest.mark.parametrize("count", [101, 1100])
def test_too_many_conditions_name_the_limit(shared: TestClient, count: int) -> None:
    answer = shared.get("/items", params={"where": ",".join(["n>0"] * count)})
    assert answer.status_code == 422
    assert "at most 100 conditions" in answer.json()["error"]["message"]


def test_the_largest_filters_are_answered(shared: TestClient) -> None:
    assert len(shared.get("/items", params={"where": ",".join(["n!=-1"] * 100)}).json()["items"]) == 50
    lists = [f"n not in ({','.join(str(-i) for i in range(1, 330))})"] * 3
    assert len(shared.get("/items", params={"where": ",".join(lists)}).json()["items"]) == 50
    refused = shared.get("/items", params={"where": ",".join(lists * 2)})
    assert refused.status_code == 422
    assert "at most 1,000 values" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "where", ["(" * 5000, "n in " + "(" * 5000 + "1" + ")" * 5000, "n=((1))", "not " * 3000 + "n=1"]
)
def test_filters_are_not_nested(shared: TestClient, where: str) -> None:
    assert shared.get("/items", params={"where": where}).status_code == 422


def test_metrics_have_fixed_labels(shared: TestClient) -> None:
    names = ["PROPFIND", "get", "FOO", "A" * 7, *(f"M{i:05d}" for i in range(300))]
    for name in names:
        shared.request(name, "/items")
        shared.get(f"/{name}")
    lines = [line for line in shared.get("/metrics").text.splitlines() if line.startswith("lookalike_requests_total")]
    assert len(lines) < 60
    methods = {line.partition('method="')[2].partition('"')[0] for line in lines}
    assert "other" in methods
    assert methods <= METHODS | {"other"}


def test_unknown_labels_are_one_series() -> None:
    metrics = Metrics()
    for status in range(600, 900):
        metrics.observe(f"M{status}", "/items", status, 0.1)
    assert metrics.text(0).decode().count("lookalike_requests_total{") == 1


def test_uploads_with_hostile_names_of_fields(shared: TestClient) -> None:
    picture = encoded(noise(8, 8))
    assert shared.post("/search", files={"picture": picture}, data={"k\0": "1"}).status_code in (400, 422)


@given(st.one_of(st.text(max_size=80), st.text(st.sampled_from("nlabe ()=<>!,'\"\\01.-in\0"), max_size=60)))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_filter_is_answered(shared: TestClient, where: str) -> None:
    answer = shared.get("/items", params={"where": where.encode("utf-8", "surrogatepass"), "limit": 1})
    assert answer.status_code in (200, 422)
