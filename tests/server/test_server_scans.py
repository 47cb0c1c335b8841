"""Reading that grows with the collection: it can be stopped, and nobody else waits for it."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import httpx
import numpy as np
import pytest
from server_helpers import READ, WRITE, in_thread

from lookalike import index
from lookalike.index import sqlite_file
from lookalike.index.stopping import Stopped, question, stopping
from lookalike.inference.model import TrainedModel
from lookalike.server import Keys, create_app, scans
from lookalike.server.context import SCAN_THREADS
from lookalike.server.errors import ApiError
from lookalike.server.scans import Scans
from lookalike.server.turns import TurnPool

OTHERS = tuple(f"a key of attacker {number}" for number in range(4))


@pytest.fixture
def pools() -> Iterator[tuple[TurnPool, TurnPool]]:
    made = TurnPool(1, "short"), TurnPool(1, "long")
    yield made
    for pool in made:
        pool.close()


async def wait(future: "Future[Any]") -> Any:
    return await asyncio.wrap_future(future)


def test_reading_can_be_stopped(idx: index.Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "STEPS", 1)
    query = idx.vectors([idx.items()[0].id])
    expected = idx.search(query, 3, "n>=2")
    structure = idx._structure  # type: ignore[attr-defined]
    readings: list[Callable[[], object]] = [
        lambda: idx.items("n>=0"),
        lambda: idx.search(query, 3, "n>=1"),
        lambda: idx.count("n>=1"),
        idx.metadata_keys,
    ]
    for read in readings:
        with stopping(lambda: True), pytest.raises(Stopped):
            read()
        read()
    assert idx._structure is structure, "what others need stays in memory"  # type: ignore[attr-defined]
    with stopping(lambda: False):
        assert idx.search(query, 3, "n>=2") == expected
    with stopping(lambda: True):
        idx.add([index.Item("new", "", "new")], np.ones((1, idx.dim), np.float32))  # changes are never stopped
    assert idx.count() == 65


def test_work_that_takes_long_starts_again_in_the_other_lane(
    pools: tuple[TurnPool, TurnPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "SHORT_SECONDS", -1)
    names = []

    def read() -> int:
        names.append(threading.current_thread().name)
        asked = question()
        assert asked is not None
        if asked():
            raise Stopped("too long")
        return 7

    assert asyncio.run(Scans(300, *pools).run(read, wait)) == 7
    assert names == ["short", "long"]


def test_work_that_takes_too_long_is_refused(pools: tuple[TurnPool, TurnPool]) -> None:
    def read() -> None:
        raise Stopped("too long")

    with pytest.raises(ApiError, match="simpler filter") as raised:
        asyncio.run(Scans(300, *pools).run(read, wait))
    assert raised.value.status == 422


def test_work_that_has_waited_too_long_is_not_started(pools: tuple[TurnPool, TurnPool]) -> None:
    with pytest.raises(ApiError, match="are waiting") as raised:
        asyncio.run(Scans(-1, *pools).run(lambda: 7, wait))
    assert raised.value.status == 503
    assert "Retry-After" in raised.value.headers


def test_attackers_with_filters_leave_threads_to_searches(
    idx: index.Index, served_model: TrainedModel, upload: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four attackers filter, list labels and change things, all of which hangs; others search."""
    database = type(idx._database)  # type: ignore[attr-defined]
    release = threading.Event()
    entered = threading.Semaphore(0)

    def hanging(name: str, applies: Callable[..., bool]) -> Callable[..., Any]:
        original = getattr(database, name)

        def call(self: Any, *arguments: Any, **more: Any) -> Any:
            if applies(*arguments):
                entered.release()
                assert release.wait(60)
            return original(self, *arguments, **more)

        return call

    items = [item.id for item in idx.items()]
    for name, applies in (
        ("items", lambda where, *_: bool(where)),
        ("numbers", lambda where, *_: bool(where)),
        ("labels", lambda: True),
        ("insert", lambda *_: True),
    ):
        monkeypatch.setattr(database, name, hanging(name, applies))
    app = create_app(idx, served_model, keys=Keys((READ, *OTHERS), (WRITE,)))
    with in_thread(app) as (url, _):

        def attack(number: int) -> None:
            headers = {"X-API-Key": OTHERS[number // 4 % 4]}
            files = {"picture": upload}
            if number % 4 == 0:
                httpx.get(f"{url}/items?where=n>{number}", headers=headers, timeout=120)
            elif number % 4 == 1:
                data = {"where": f"n>{number}"}
                httpx.post(f"{url}/search", files=files, data=data, headers=headers, timeout=120)
            elif number % 4 == 2:
                httpx.post(f"{url}/items", files=files, headers={"X-API-Key": WRITE}, timeout=120)
            else:
                httpx.get(f"{url}/labels", headers=headers, timeout=120)

        threads = [threading.Thread(target=attack, args=(number,), daemon=True) for number in range(32)]
        try:
            for thread in threads:
                thread.start()
            for _ in range(SCAN_THREADS + 1):  # all that read, and the one that changes
                assert entered.acquire(timeout=60)
            with httpx.Client(base_url=url, headers={"X-API-Key": READ}, timeout=60) as client:
                assert client.post("/search", files={"picture": upload}).status_code == 200
                assert client.get("/items?limit=5").status_code == 200
                assert client.get(f"/items/{items[0]}").status_code == 200
            assert not release.is_set()
        finally:
            release.set()
        for thread in threads:
            thread.join(60)


def test_changes_do_not_hold_up_a_search(idx: index.Index, monkeypatch: pytest.MonkeyPatch) -> None:
    database = type(idx._database)  # type: ignore[attr-defined]
    entered, release = threading.Event(), threading.Event()
    insert = database.insert

    def slowly(self: Any, *arguments: Any) -> Any:
        entered.set()
        assert release.wait(60)
        return insert(self, *arguments)

    query = idx.vectors([idx.items()[0].id])
    monkeypatch.setattr(database, "insert", slowly)
    writing = threading.Thread(
        target=lambda: idx.add([index.Item("new", "", "new")], np.ones((1, idx.dim), np.float32)), daemon=True
    )
    found: list[object] = []
    searching = threading.Thread(target=lambda: found.append(idx.search(query, 3)), daemon=True)
    try:
        writing.start()
        assert entered.wait(60)
        searching.start()
        searching.join(60)
        assert found, "the search waits for the addition"
    finally:
        release.set()
    writing.join(60)
    assert [hit.item.id for hit in idx.search(query, 100, "label=new")[0]] == ["new"]


def test_known_filters_read_only_new_rows(idx: index.Index, monkeypatch: pytest.MonkeyPatch) -> None:
    database = type(idx._database)  # type: ignore[attr-defined]
    original = database.numbers
    since: list[int] = []

    def numbers(self: Any, where: Any, *state: Any) -> Any:
        since.append(state[0].number if state else 0)
        return original(self, where, *state)

    monkeypatch.setattr(database, "numbers", numbers)
    first, second, *_ = idx.items("label=class1")
    query = idx.vectors([first.id])
    before = {hit.item.id for hit in idx.search(query, 200, "label=class1")[0]}
    idx.add([first._replace(label="other"), index.Item("new", "", "class1")], np.repeat(query, 2, 0))
    idx.delete([second.id])
    after = {hit.item.id for hit in idx.search(query, 200, "label=class1")[0]}
    assert after == before - {first.id, second.id} | {"new"}
    assert after == {item.id for item in idx.items("label=class1")}
    assert since == [0, 64]
    for number in range(20):
        idx.search(query, 3, f"n>{number}")
    assert len(idx._matches) == len(idx._selections) == 8  # type: ignore[attr-defined]


def test_metadata_keys_are_read_by_the_database(idx: index.Index) -> None:
    metadata: dict[str, Any] = {"deep": {"inner": 1}, "list": [{"x": 1}], "n": None}
    idx.add([index.Item("a", "", "", metadata), index.Item("b", "")], np.ones((2, idx.dim), np.float32))
    connection = idx._database.connection  # type: ignore[attr-defined]
    connection.execute("UPDATE items SET metadata = '[1]', checksum = NULL WHERE id = 'b'")
    assert idx.metadata_keys() == {"deep", "list", "n"}
    connection.execute("UPDATE items SET metadata = '{\"torn', checksum = NULL WHERE id = 'b'")
    assert idx.metadata_keys() == {"deep", "list", "n"}
