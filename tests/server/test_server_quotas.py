"""Keys with limits, quotas, wrong keys, and clients that send or read slowly."""

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from server_helpers import READ, WRITE, encoded, in_process, in_thread, noise

from lookalike import index
from lookalike.inference.model import TrainedModel
from lookalike.server import Keys, Limits, Quota, create_app
from lookalike.server.access import WRONG_KEYS
from lookalike.server.keys import Rules
from lookalike.server.quotas import MOST_BUCKETS, Buckets

SECOND = "a second key for looking"


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def opened(app: FastAPI, clock: Clock, **more: Any) -> Iterator[TestClient]:
    app.state.context.access.buckets = Buckets(clock)
    with TestClient(app, base_url="http://127.0.0.1", **more) as client:
        yield client


def with_key(key: str, address: str = "192.0.2.1") -> dict[str, str]:
    return {"X-API-Key": key, "X-Forwarded-For": address}


def test_reads_per_key_and_minute(shared_index: index.Index, served_model: TrainedModel) -> None:
    clock = Clock()
    keys = Keys((READ, SECOND), (WRITE,), {SECOND: Rules(quota=Quota(reads=2))})
    app = create_app(shared_index, served_model, keys=keys, quota=Quota(reads=3))
    with opened(app, clock) as client:
        statuses = [client.get("/labels", headers=with_key(READ)).status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
        refused = client.get("/items", headers=with_key(READ))
        assert refused.json()["error"]["message"].startswith("the quota is 3 reads per minute")
        assert refused.headers["Retry-After"] == "20"
        statuses = [client.get("/labels", headers=with_key(SECOND)).status_code for _ in range(3)]
        assert statuses == [200, 200, 429], "the quota of the key file counts, and each key has its own"
        clock.now += 20
        statuses = [client.get("/labels", headers=with_key(READ)).status_code for _ in range(2)]
        assert statuses == [200, 429]
        assert client.get("/healthz").status_code == 200


def test_writes_items_and_bytes(idx: index.Index, served_model: TrainedModel) -> None:
    clock = Clock()
    quota = Quota(writes=4, items=2, megabytes=0.02)
    with opened(create_app(idx, served_model, quota=quota), clock) as client:

        def add(seed: int, side: int = 10) -> int:
            picture = encoded(noise(side, side, seed))
            return client.post("/items", files={"picture": picture}).status_code

        assert [add(1), add(2), add(3)] == [200, 200, 429]
        item_id = idx.items()[0].id
        assert [client.delete(f"/items/{item_id}").status_code for _ in range(3)] == [200, 404, 429]
        clock.now += 60
        assert [add(4, side=100), add(5)] == [200, 429], "the large one has used more than a minute's bytes"
        clock.now += 60
        assert add(6) == 200

        def chunks() -> Iterator[bytes]:
            yield b"--x\r\n"

        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        clock.now += 600
        assert client.post("/embed", content=chunks(), headers=headers).status_code == 422
        answer = client.post("/embed", content=chunks(), headers=headers)
        assert answer.status_code == 429, "a body of unknown size counts as the largest"


def test_full_collection(idx: index.Index, served_model: TrainedModel, upload: bytes) -> None:
    app = create_app(idx, served_model, limits=Limits(items=idx.count() + 1))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert client.post("/items", files={"picture": upload}).status_code == 200
        refused = client.post("/items", files={"picture": encoded(noise(9, 9))})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "full")
        again = client.post("/items", files={"picture": upload}, data={"label": "new"})
        assert again.json()["created"] is False
        assert len(list((idx.path / "uploads").iterdir())) == 1


def test_keys_of_other_collections(shared_index: index.Index, served_model: TrainedModel, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{READ}\n  collections: fish, striped.idx\n{SECOND}\n\tcollections: fish\n\treads-per-minute: 9\n")
    keys = Keys.load(file, None, {})
    assert keys.rules[SECOND] == Rules(("fish",), Quota(reads=9))
    with TestClient(create_app(shared_index, served_model, keys=keys), base_url="http://127.0.0.1") as client:
        assert client.get("/labels", headers=with_key(READ)).status_code == 200
        for path in ("/labels", "/items", "/model", "/metrics", "/map"):
            refused = client.get(path, headers=with_key(SECOND))
            assert (refused.status_code, refused.json()["error"]["code"]) == (403, "other_collection")
        assert client.get("/healthz", headers=with_key(SECOND)).json()["items"] is None
        assert client.get("/healthz", headers=with_key(READ)).json()["items"] == 64


@pytest.mark.parametrize(
    "line", ["reads: 3", "reads-per-minute: 1_0", "reads-per-minute: 0", "collections:", "another: key", "a: b"]
)
def test_key_files_with_wrong_limits(tmp_path: Path, line: str) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{READ}\n  {line}\n")
    with pytest.raises(ValueError, match="line 2") as caught:
        Keys.load(file, None, {})
    assert READ not in str(caught.value)
    assert "another" not in str(caught.value)


def test_wrong_keys_are_throttled_and_logged(
    shared_index: index.Index, served_model: TrainedModel, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    app = create_app(shared_index, served_model, keys=Keys((READ, SECOND)), proxies=["127.0.0.1"])
    with opened(app, clock, client=("127.0.0.1", 5)) as client, caplog.at_level(logging.WARNING):
        assert client.get("/labels", headers=with_key(READ)).status_code == 200
        guesses = [f"a guessed key, number {i}" for i in range(WRONG_KEYS + 30)]
        statuses = [client.get("/labels", headers=with_key(guess)).status_code for guess in guesses]
        assert statuses == [401] * WRONG_KEYS + [429] * 30
        refused = client.get("/healthz", headers=with_key(guesses[0]))
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "3")
        assert client.get("/labels", headers=with_key(SECOND)).status_code == 429, "a right guess is of no use"
        assert client.get("/labels", headers=with_key(READ)).status_code == 200, "the client from before may go on"
        assert client.get("/labels", headers=with_key(SECOND, "192.0.2.2")).status_code == 200
        assert client.get("/labels", headers={"X-Forwarded-For": "192.0.2.1"}).status_code == 401
        clock.now += 3
        assert client.get("/labels", headers=with_key(SECOND)).status_code == 200
    lines = [record.getMessage() for record in caplog.records if "192.0.2.1" in record.getMessage()]
    assert len(lines) == WRONG_KEYS + 1
    assert not any("guessed" in line for line in lines), "keys never reach the log"


def test_only_named_proxies_say_who_the_client_is(shared_index: index.Index, served_model: TrainedModel) -> None:
    for proxies, expected in (([], [200, 429, 429]), (["127.0.0.1"], [200, 200, 200])):
        app = create_app(shared_index, served_model, quota=Quota(reads=1), proxies=proxies)
        with opened(app, Clock(), client=("127.0.0.1", 5)) as client:
            statuses = []
            for last in range(3):
                answer = client.get("/labels", headers={"X-Forwarded-For": f"192.0.2.{last}"})
                statuses.append(answer.status_code)
        assert statuses == expected


def test_neighbours_in_ipv6_share_their_tries(shared_index: index.Index, served_model: TrainedModel) -> None:
    app = create_app(shared_index, served_model, keys=Keys((READ,)), proxies=["::1"])
    with opened(app, Clock(), client=("::1", 5)) as client:
        statuses = []
        for i in range(WRONG_KEYS + 1):
            headers = with_key("not a key at all", f"2001:db8::{i:x}:1")
            statuses.append(client.get("/labels", headers=headers).status_code)
    assert statuses[-1] == 429


def test_only_a_proxy_on_this_machine_names_the_client(shared_index: index.Index, served_model: TrainedModel) -> None:
    app = create_app(shared_index, served_model, keys=Keys((READ,)), hosts=None)
    with opened(app, Clock(), client=("198.51.100.7", 5)) as client:
        statuses = []
        for i in range(WRONG_KEYS + 1):
            headers = with_key("not a key at all", f"192.0.2.{i}")
            statuses.append(client.get("/labels", headers=headers).status_code)
    assert statuses[-1] == 429


def test_buckets_are_bounded() -> None:
    buckets = Buckets(Clock())
    for i in range(MOST_BUCKETS + 100):
        buckets.take(i, 1, 1)
    assert len(buckets._tokens) == MOST_BUCKETS
    assert buckets.wait(0, 1, 1) == 0, "the oldest is forgotten"
    assert buckets.wait(MOST_BUCKETS, 1, 1) == 60


# ---- slow clients, on real sockets


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def read_to_end(connection: socket.socket) -> bytes:
    """Everything until the server closes; fails after the socket's time-out."""
    content = b""
    try:
        while block := connection.recv(65536):
            content += block
    except ConnectionResetError:
        pass
    return content


def closes(connection: socket.socket, drip: bytes) -> bool:
    """Whether the server closes while the same bytes are sent again and again."""
    for _ in range(400):
        try:
            connection.sendall(drip)
        except OSError:
            return True
        time.sleep(0.05)
    return False


def read_answer(connection: socket.socket) -> bytes:
    """One answer with a JSON object."""
    content = b""
    while not content.endswith(b"}"):
        block = connection.recv(65536)
        assert block, "the connection was closed"
        content += block
    return content


LINE = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n"
WITHOUT_BODY = b"POST /embed HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n"
WITHOUT_BODY += b"Content-Type: multipart/form-data; boundary=x\r\n"


@pytest.fixture(scope="module")
def impatient(shared_index: index.Index, served_model: TrainedModel) -> Iterator[str]:
    """The address of a server that waits a second for headers and answers four requests at a time."""
    limits = Limits(header_seconds=1.0, requests=4)
    with in_thread(create_app(shared_index, served_model, keys=Keys((READ,), (WRITE,)), limits=limits)) as (url, _):
        yield url


def test_half_sent_headers_are_closed(impatient: str) -> None:
    connections = []
    for start in (b"", b"G", LINE, LINE + b"X-Slow: "):
        connections.append(connect(impatient))
        connections[-1].sendall(start)
    for connection in connections:
        with connection:
            assert read_to_end(connection) == b""


def test_a_drip_of_headers_does_not_stop_the_clock(impatient: str) -> None:
    with connect(impatient) as connection:
        connection.sendall(LINE + b"\r\n")
        assert read_answer(connection).startswith(b"HTTP/1.1 200")
        connection.sendall(LINE)
        assert closes(connection, b"X-More: 1\r\n")


def test_requests_after_each_other_are_not_closed(impatient: str) -> None:
    with connect(impatient) as connection:
        for _ in range(8):  # longer than the limit in all
            connection.sendall(LINE + b"\r\n")
            assert read_answer(connection).startswith(b"HTTP/1.1 200")
            time.sleep(0.2)


def test_a_body_that_nobody_reads_does_not_hold_the_connection(impatient: str) -> None:
    with connect(impatient) as connection:
        connection.sendall(WITHOUT_BODY + b"\r\n")
        assert read_answer(connection).startswith(b"HTTP/1.1 401")
        assert closes(connection, b"x")


def test_waiting_connections_make_room_for_others(impatient: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lookalike.server.connection.MOST_CONNECTIONS", 3)
    held = []
    for _ in range(3):
        held.append(connect(impatient))
        held[-1].sendall(LINE)
    for _ in range(2):
        with connect(impatient) as connection:
            connection.sendall(LINE + b"Connection: close\r\n\r\n")
            assert read_to_end(connection).startswith(b"HTTP/1.1 200")
    assert read_to_end(held[0]) == b"", "the oldest one was closed"
    for connection in held:
        connection.close()


def test_one_client_cannot_take_all_places(impatient: str) -> None:
    """Bodies that never arrive hold their places for a minute."""

    def begin(key: str) -> socket.socket:
        connection = connect(impatient)
        connection.sendall(WITHOUT_BODY + b"X-API-Key: " + key.encode() + b"\r\n\r\n")
        return connection

    held = [begin(READ), begin(READ)]
    time.sleep(0.2)
    with begin(READ) as refused:
        answer = read_answer(refused)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in answer.lower()
    with connect(impatient) as connection:
        connection.sendall(b"GET /labels HTTP/1.1\r\nHost: 127.0.0.1\r\nX-API-Key: " + WRITE.encode() + b"\r\n\r\n")
        assert read_answer(connection).startswith(b"HTTP/1.1 200")
    for connection in held:
        connection.close()


def test_an_answer_that_nobody_reads_is_dropped(idx: index.Index, served_model: TrainedModel, tmp_path: Path) -> None:
    file = tmp_path / "large.png"
    noise(2500, 2500).save(file)
    idx.add([index.Item("large", str(file))], idx.vectors([idx.items()[0].id]))
    app = create_app(idx, served_model, limits=Limits(upload_seconds=0.5))
    with in_thread(app) as (url, server), connect(url) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(b"GET /items/large/image HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert connection.recv(10)
        until = time.monotonic() + 20
        while server.server_state.connections and time.monotonic() < until:
            time.sleep(0.05)
        assert not server.server_state.connections


CHUNKED = b"POST /embed HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=x\r\n"
CHUNKED += b"Transfer-Encoding: chunked\r\n"


def test_a_torn_chunk_logs_one_line(impatient: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for key in (None, READ):
            for pause in (0.0, 0.3):
                caplog.clear()
                with connect(impatient) as connection:
                    header = b"" if key is None else b"X-API-Key: " + key.encode() + b"\r\n"
                    connection.sendall(CHUNKED + header + b"\r\n5\r\n--x\r\n\r\n")
                    time.sleep(pause)
                    connection.sendall(b"zz\r\nnot a chunk\r\n")
                    assert read_to_end(connection).startswith((b"HTTP/1.1 401", b"HTTP/1.1 400"))
                assert [record.getMessage() for record in caplog.records] == ["Invalid HTTP request received."]
                assert not any(record.exc_info for record in caplog.records)


def test_serve_takes_quotas(index_folder: Path) -> None:
    with in_process(index_folder, "--reads-per-minute", "1", "--header-seconds", "0.5") as (url, _):
        with connect(url) as connection:
            connection.sendall(LINE)
            assert read_to_end(connection) == b""
        statuses = []
        for _ in range(2):
            with connect(url) as connection:
                connection.sendall(b"GET /labels HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                statuses.append(read_to_end(connection)[9:12])
        assert statuses == [b"200", b"429"]
