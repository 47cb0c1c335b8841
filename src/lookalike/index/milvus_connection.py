"""Getting at Milvus: an address, or a file that Milvus in this process opens, and its errors in one line.

A file is opened once for all who use it in this process, and held by a lock as long as it is open. A password is taken
from the environment, LOOKALIKE_MILVUS_TOKEN, and never written down.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from lookalike.index.storage import IndexInUse

TOKEN = "LOOKALIKE_MILVUS_TOKEN"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}")

_open_files: Counter[tuple[int, str]] = Counter()  # by process: a fork must not take what its parent has for its own
_files = Lock()


def is_address(store: str) -> bool:
    return store.startswith(("http://", "https://"))


def check_store(store: str, collection: str | None) -> None:
    if collection is not None and not NAME.fullmatch(collection):
        raise ValueError(
            f"a collection's name must be letters, digits and _, and begin with no digit, got {collection!r}"
        )
    if is_address(store):
        parts = urlsplit(store)
        if not parts.hostname:
            raise ValueError(f"an address of Milvus must be like http://host:19530, got {store}")
        if parts.username or parts.password:
            raise ValueError(f"put no password into the address of Milvus, but into the environment, as {TOKEN}")
    elif not store.endswith(".db"):
        raise ValueError(f"store must be faiss, a path that ends in .db, or the address of a server, got {store!r}")


def connect(uri: str) -> Any:
    """A client; of a file, which is opened once for all clients of this process."""
    try:
        from pymilvus import MilvusClient
    except ImportError:
        raise OSError("Milvus needs pymilvus: pip install 'pymilvus[milvus_lite]'") from None
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # what goes wrong is raised, and said once
    if is_address(uri):
        with told(uri):
            return MilvusClient(uri, token=os.environ.get(TOKEN, ""))
    for name in ("milvus_lite", "grpc._server"):  # Milvus in this process has a server, which is not asked all it could
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with _files:
        if _in_use(uri) and not _open_files[os.getpid(), uri]:
            raise IndexInUse(
                f"{uri} is open in another process: Milvus in a file is for one at a time, a server takes any number"
            )
        with told(uri):
            client = MilvusClient(uri)
        _open_files[os.getpid(), uri] += 1
    return client


def disconnect(client: Any, uri: str) -> None:
    client.close()
    if is_address(uri):
        return
    with _files:
        _open_files[os.getpid(), uri] -= 1
        if _open_files[os.getpid(), uri] <= 0:
            import_module("milvus_lite.server_manager").server_manager_instance.release_server(uri)


def _in_use(uri: str) -> bool:
    """Milvus in a file holds a lock there as long as it is open."""
    if not (Path(uri) / "LOCK").is_file():
        return False
    try:
        with FileLock(Path(uri) / "LOCK", timeout=0):
            return False
    except Timeout:
        return True


@contextmanager
def connected(uri: str) -> Iterator[Any]:
    client = connect(uri)
    try:
        yield client
    finally:
        disconnect(client, uri)


@contextmanager
def told(uri: str) -> Iterator[None]:
    """Errors of Milvus, in one line."""
    from pymilvus.exceptions import MilvusException

    try:
        yield
    except MilvusException as error:
        raise OSError(f"Milvus at {uri}: {(str(error.message).strip().splitlines() or ['failed'])[0]}") from error
