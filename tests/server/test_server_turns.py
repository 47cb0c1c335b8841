"""Clients take turns in queues and threads, and answers take bounded memory."""

import json
import socket
import threading
import time

import httpx
import numpy as np
import pytest
from fastapi.testclient import TestClient
from server_helpers import READ, WRITE, in_thread

from lookalike import index
from lookalike.inference.model import TrainedModel
from lookalike.server import Keys, create_app, middleware
from lookalike.server.budget import Budget
from lookalike.server.errors import ApiError
from lookalike.server.turns import CLIENT, TurnPool, TurnQueue

OTHER = "a key for somebody else"


def taken(queue: TurnQueue[str], count: int) -> list[str]:
    return [queue.take()[0] for _ in range(count)]


def test_clients_take_turns_and_jobs_of_one_stay_in_order() -> None:
    queue: TurnQueue[str] = TurnQueue()
    for number in range(4):
        queue.add(f"a{number}", "a")
    assert taken(queue, 1) == ["a0"]
    queue.add("b0", "b")
    queue.add("b1", "b")
    assert taken(queue, 5) == ["b0", "a1", "b1", "a2", "a3"]
    assert queue.next() is None
    for client in "aaaabb":
        queue.done(client)
    assert len(queue) == 0
    assert not queue._taken
    assert not queue._last_turn


def test_a_full_queue_makes_room_for_clients_with_fewer_jobs() -> None:
    queue: TurnQueue[str] = TurnQueue(most=4)
    assert [queue.add(f"a{number}", "a") for number in range(4)] == [None] * 4
    assert not queue.has_room("a")
    assert queue.add("b0", "b") == "a3"
    assert queue.add("b1", "b") == "a2"
    assert not queue.has_room("b"), "both have two"
    with pytest.raises(ValueError, match="full"):
        queue.add("b2", "b")
    assert taken(queue, 4) == ["a0", "b0", "a1", "b1"]


def test_a_client_leaves_threads_to_others() -> None:
    pool = TurnPool(4, "test")
    release = threading.Event()
    try:
        busy = [pool.submit(lambda: release.wait(30)) for _ in range(10)]
        CLIENT.set("another")
        assert pool.submit(lambda: 1).result(30) == 1, "ten jobs of one client do not take all threads"
        with pytest.raises(ZeroDivisionError):
            pool.submit(lambda: 1 // 0).result(30)
        assert not any(future.done() for future in busy)
        assert busy[-1].cancel()
    finally:
        CLIENT.set("")
        release.set()
        pool.close()
    assert all(future.done() for future in busy), "what was accepted is finished"
    with pytest.raises(RuntimeError, match="have ended"):
        pool.submit(lambda: 1)


def test_one_client_holds_at_most_what_it_leaves_to_others() -> None:
    budget = Budget(100, "too much", fair=True)
    with budget.hold(30, "a"):
        with pytest.raises(ApiError, match="too much"), budget.hold(40, "a"):
            pass
        with budget.hold(20, "a"), budget.hold(40, "b"), pytest.raises(ApiError), budget.hold(20, "c"):
            pass
    with budget.hold(500, "a"), pytest.raises(ApiError), budget.hold(1, "b"):
        pass
    assert budget._held == 0
    assert not budget._held_by


def test_reading_many_rows_does_not_hold_up_a_search(idx: index.Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing or a filter that reads every row may take seconds."""
    database = type(idx._database)  # type: ignore[attr-defined]
    entered, release = threading.Event(), threading.Event()
    original = {name: getattr(database, name) for name in ("items", "numbers")}

    def slowly(name: str):  # type: ignore[no-untyped-def]
        def call(*arguments: object) -> object:
            entered.set()
            assert release.wait(30)
            return original[name](*arguments)

        return call

    query = idx.vectors([idx.items()[0].id])
    for name in original:
        monkeypatch.setattr(database, name, slowly(name))
    try:
        for work in (lambda: idx.items("n>=0"), lambda: idx.search(query, 3, "n>=0")):
            entered.clear()
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            assert entered.wait(30)
            found: list[object] = []
            searching = threading.Thread(target=lambda: found.append(idx.search(query, 3)), daemon=True)  # noqa: B023
            searching.start()
            searching.join(20)
            assert found, "the search waits for the reading"
    finally:
        release.set()
    thread.join(30)
    assert idx.search(query, 3, "n>=0") == idx.search(query, 3)


def test_filtered_searches_after_a_change(idx: index.Index) -> None:
    query = idx.vectors([idx.items()[0].id])
    assert not idx.search(query, 100, "label=new")[0]
    idx.add([index.Item("new", "", "new")], np.ones((1, idx.dim), np.float32))
    assert [hit.item.id for hit in idx.search(query, 100, "label=new")[0]] == ["new"]
    idx.delete(["new"])
    assert not idx.search(query, 100, "label=new")[0]


def test_pages_of_long_metadata_are_shorter(client: TestClient) -> None:
    idx = client.app.state.context.collection.idx  # type: ignore[attr-defined]
    metadata = {f"k{number}": "x" * 110 for number in range(250)}
    items = [index.Item(f"long{number:03d}", "", "long", metadata) for number in range(100)]
    idx.add(items, np.random.default_rng(0).normal(size=(100, idx.dim)))
    ids: list[str] = []
    after = ""
    while True:
        answer = client.get("/items", params={"where": "label=long", "limit": 500, "after": after})
        assert len(answer.content) < 1_500_000
        ids += [item["id"] for item in answer.json()["items"]]
        after = answer.json()["next"]
        if after is None:
            break
    assert ids == [item.id for item in items]
    fields = client.get("/fields").json()["fields"]
    assert len(fields) <= 200


def test_unread_answers_take_bounded_memory(
    idx: index.Index, served_model: TrainedModel, upload: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They count until they are read; a client leaves room to others."""
    monkeypatch.setattr(middleware, "ANSWER_MEMORY", 30_000_000)
    metadata = {f"k{number}": "x" * 110 for number in range(250)}
    items = [index.Item(f"long{number:03d}", "", "long", metadata) for number in range(200)]
    idx.add(items, np.tile(np.eye(1, idx.dim, dtype=np.float32), (200, 1)))
    app = create_app(idx, served_model, keys=Keys((READ, OTHER), (WRITE,)))
    with in_thread(app) as (url, _):
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        form = httpx.Request("POST", url, files={"picture": upload}, data={"k": "200"})
        form.read()
        head = f"POST /search HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {READ}\r\n"
        head += f"Content-Type: {form.headers['content-type']}\r\nContent-Length: {len(form.content)}\r\n\r\n"
        sockets = []
        statuses = []
        for _ in range(8):
            sockets.append(socket.socket())
            sockets[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sockets[-1].settimeout(60)
            sockets[-1].connect(address)
            sockets[-1].sendall(head.encode() + form.content)
            statuses.append(int(sockets[-1].recv(12).split()[1]))
        assert statuses[0] == 200
        assert statuses[-1] == 503, "5 MB each, 30 MB for all, of which one client may have half"
        other = httpx.post(
            f"{url}/search", files={"picture": upload}, data={"k": "200"}, headers={"X-API-Key": OTHER}, timeout=60
        )
        assert other.status_code == 200
        assert len(json.loads(other.content)["hits"]) == 200
        for each in sockets:
            each.close()
        deadline = time.monotonic() + 60
        status = 503
        while status == 503 and time.monotonic() < deadline:  # until the server notices
            time.sleep(0.1)
            status = httpx.get(f"{url}/items?limit=500", headers={"X-API-Key": READ}, timeout=60).status_code
        assert status == 200


def test_other_clients_do_not_wait_for_the_model(idx: index.Index, served_model: TrainedModel) -> None:
    """Someone who fills the queue of the model waits behind others, and loses places to them."""
    entered, release = threading.Event(), threading.Event()

    def block(_: object) -> None:
        entered.set()
        assert release.wait(30)

    app = create_app(idx, served_model)
    batcher = app.state.context.batcher
    order: list[str] = []
    CLIENT.set("greedy")
    try:
        jobs = [batcher.run(block)]
        assert entered.wait(30)
        for _ in range(64):
            jobs.append(batcher.run(lambda _: order.append("greedy")))
        assert not batcher.has_room()
        CLIENT.set("modest")
        assert batcher.has_room()
        mine = batcher.run(lambda _: order.append("modest"))
        with pytest.raises(Exception, match="other clients are waiting"):
            jobs[-1].result(30)
    finally:
        CLIENT.set("")
        release.set()
    mine.result(30)
    app.state.context.close()
    assert order.index("modest") == 0
