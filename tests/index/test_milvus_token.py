"""The token goes to the server that the user names, not to the one that an index names."""

import json
import socket
from pathlib import Path
from threading import Thread

import pytest

from lookalike import index
from lookalike.index.milvus_connection import token_for
from lookalike.inference.model import TrainedModel

TOKEN = "root:very-secret"


def write_about(folder: Path, text: str) -> None:
    """Write index.json as a stranger would, without a checksum."""
    (folder / "index.json").write_text(text)
    (folder / "checksums.json").unlink()


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOKALIKE_MILVUS_TOKEN", TOKEN)
    monkeypatch.delenv("LOOKALIKE_MILVUS_URI", raising=False)


@pytest.mark.parametrize(
    ("uri", "named", "sent"),
    [
        ("https://milvus.example:19530", "https://milvus.example:19530", True),
        ("https://Milvus.example:19530/db", "https://milvus.example:19530", True),
        ("http://127.0.0.1:19530", "http://127.0.0.1:19530", True),
        ("http://localhost:19530", "http://localhost:19530", True),
        ("http://[::1]:19530", "http://[::1]:19530", True),
        ("http://127.0.0.1:19530", None, False),
        ("https://milvus.example:19530", None, False),
        ("https://evil.example:19530", "https://milvus.example:19530", False),
        ("https://milvus.example:19531", "https://milvus.example:19530", False),
        ("https://milvus.example.evil.example:19530", "https://milvus.example:19530", False),
        ("https://milvus.example:19530@evil.example:19530", "https://milvus.example:19530", False),
        ("http://milvus.example:19530", "https://milvus.example:19530", False),
        ("http://milvus.example:19530", "http://milvus.example:19530", False),
        ("http://localhost.evil.example:19530", "http://localhost.evil.example:19530", False),
        ("http://127.0.0.1.evil.example:19530", "http://127.0.0.1.evil.example:19530", False),
    ],
)
@pytest.mark.parametrize("by_environment", [False, True])
def test_who_gets_the_token(
    uri: str, named: str | None, sent: bool, by_environment: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_environment and named:
        monkeypatch.setenv("LOOKALIKE_MILVUS_URI", named)
        named = None
    if sent:
        assert token_for(uri, named) == TOKEN
    else:
        with pytest.raises(PermissionError, match="LOOKALIKE_MILVUS_TOKEN is not sent to"):
            token_for(uri, named)


def test_without_a_token_any_server_may_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOOKALIKE_MILVUS_TOKEN")
    assert token_for("http://anybody.example:19530") == ""


def test_the_index_of_a_stranger_gets_nothing(model: TrainedModel, tmp_path: Path) -> None:
    """A listening socket, named by index.json, receives no byte."""
    index.create(tmp_path / "idx", model).close()
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"

        def listen() -> None:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                received.append(connection.recv(4096))

        thread = Thread(target=listen)
        thread.start()
        about = json.loads((tmp_path / "idx" / "index.json").read_text())
        about |= {"backend": "milvus", "store": address, "collection": "items"}
        write_about(tmp_path / "idx", json.dumps(about))
        with pytest.raises(PermissionError, match=f"not sent to {address}, which only the index names"):
            index.open(tmp_path / "idx")
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert received == []


@pytest.mark.parametrize(
    "store", ["https://a b:1", "https://host:1\nx", "http://u:p@host:1", "http://", "http://host:99999"]
)
def test_strange_addresses_in_an_index(store: str, model: TrainedModel, tmp_path: Path) -> None:
    index.create(tmp_path / "idx", model).close()
    about = json.loads((tmp_path / "idx" / "index.json").read_text())
    about |= {"backend": "milvus", "store": store, "collection": "items"}
    write_about(tmp_path / "idx", json.dumps(about))
    with pytest.raises(index.BrokenIndex, match="does not describe an index"):
        index.open(tmp_path / "idx")


@pytest.mark.parametrize("change", [{"dim": 10**12}, {"dim": -1}, {"backend": "x"}, {"distance": "x"}, {"kind": "x"}])
def test_index_json_out_of_bounds(change: dict[str, object], model: TrainedModel, tmp_path: Path) -> None:
    index.create(tmp_path / "idx", model).close()
    about = json.loads((tmp_path / "idx" / "index.json").read_text())
    write_about(tmp_path / "idx", json.dumps(about | change))
    with pytest.raises(index.BrokenIndex, match="does not describe an index"):
        index.open(tmp_path / "idx")


def test_index_json_that_nests(model: TrainedModel, tmp_path: Path) -> None:
    index.create(tmp_path / "idx", model).close()
    write_about(tmp_path / "idx", "[" * 100_000)
    with pytest.raises(index.BrokenIndex, match="nested deeper than 64"):
        index.open(tmp_path / "idx")
