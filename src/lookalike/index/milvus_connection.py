"""Connections to Milvus: a server's address, or a file that Milvus opens inside this process.

A file is opened once for all clients of this process and is locked while it is open. A password comes from the
environment variable LOOKALIKE_MILVUS_TOKEN and is never stored. It is sent only to a server that the user has named,
never to one that only the file of an index names, and unencrypted only within this machine.
"""

import logging
import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from ipaddress import ip_address
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from filelock import FileLock, Timeout

from lookalike.index.storage import IndexInUse

TOKEN = "LOOKALIKE_MILVUS_TOKEN"
ADDRESS = "LOOKALIKE_MILVUS_URI"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,200}")
ADDRESS_TEXT = re.compile(r"[\w.:/@\[\]-]+", re.ASCII)
EMBEDDED_LOGGERS = ("milvus_lite", "grpc._server")

_open_files: Counter[tuple[int, str]] = Counter()  # clients by process and file; a fork does not own its parent's
_open_files_lock = Lock()


def is_address(store: str) -> bool:
    """Return whether the store is a server and not a file."""
    return store.startswith(("http://", "https://"))


def check_store(store: str, collection: str | None) -> None:
    """Check where a collection is to be stored.

    Args:
        store: A server's address, or a path that ends in ``.db``.
        collection: Name of the collection; None for a generated one.

    Raises:
        ValueError: If either is invalid, or the address contains a password.
    """
    if collection is not None and not NAME.fullmatch(collection):
        raise ValueError(
            f"a collection's name must be letters, digits and _, and begin with no digit, got {collection!r}"
        )
    if is_address(store):
        parts = urlsplit(store)
        parts.port  # noqa: B018 - raises ValueError if it is no port
        if not parts.hostname or not ADDRESS_TEXT.fullmatch(store):
            raise ValueError(f"an address of Milvus must be like http://host:19530, got {store}")
        if parts.username or parts.password:
            raise ValueError(f"put no password into the address of Milvus, but into the environment, as {TOKEN}")
    elif not store.endswith(".db"):
        raise ValueError(f"store must be faiss, a path that ends in .db, or the address of a server, got {store!r}")


def token_for(uri: str, named: str | None = None) -> str:
    """Return the token for a server.

    Args:
        uri: The server's address.
        named: An address that the user gave; the environment variable LOOKALIKE_MILVUS_URI may have one, too.

    Returns:
        The token; empty if there is none.

    Raises:
        PermissionError: If there is a token, and the user named another server or none, or it would go over the
            network unencrypted.
    """
    token = os.environ.get(TOKEN, "")
    if not token:
        return ""
    trusted = [_server(address) for address in (named, os.environ.get(ADDRESS)) if address]
    if _server(uri) not in trusted:
        raise PermissionError(
            f"{TOKEN} is not sent to {uri}, which only the index names: if you trust it, set {ADDRESS} to this address"
        )
    parts = urlsplit(uri)
    if parts.scheme != "https" and not _is_loopback(parts.hostname or ""):
        raise PermissionError(f"{TOKEN} is not sent to {uri} without encryption: use https, or unset {TOKEN}")
    return token


def _server(address: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(address.strip())
    return parts.scheme, parts.hostname, parts.port


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def connect(uri: str, named: str | None = None) -> Any:
    """Open a client. Close it with ``disconnect``.

    Args:
        uri: A server's address or an absolute file path.
        named: An address that the user gave (see ``token_for``).

    Returns:
        A ``pymilvus.MilvusClient``.

    Raises:
        IndexInUse: If another process has the file open.
        PermissionError: If the server must not have the user's token.
        OSError: If pymilvus is missing or Milvus cannot be reached.
    """
    try:
        from pymilvus import MilvusClient
    except ImportError:
        raise OSError("Milvus needs pymilvus: pip install 'pymilvus[milvus_lite]'") from None
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # failures are raised; do not log them, too
    if is_address(uri):
        token = token_for(uri, named)
        with translated_errors(uri):
            return MilvusClient(uri, token=token)
    for name in EMBEDDED_LOGGERS:  # the embedded server logs calls that it does not implement
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with _open_files_lock:
        if _is_locked(uri) and not _open_files[os.getpid(), uri]:
            raise IndexInUse(
                f"{uri} is open in another process: a Milvus file serves one process at a time, a server serves many"
            )
        with translated_errors(uri):
            client = MilvusClient(uri)
        _open_files[os.getpid(), uri] += 1
    return client


def disconnect(client: Any, uri: str) -> None:
    """Close a client; the last one of a file also stops its embedded server."""
    client.close()
    if is_address(uri):
        return
    with _open_files_lock:
        _open_files[os.getpid(), uri] -= 1
        if _open_files[os.getpid(), uri] <= 0:
            import_module("milvus_lite.server_manager").server_manager_instance.release_server(uri)


@contextmanager
def connected(uri: str, named: str | None = None) -> Iterator[Any]:
    """Open a client for the length of a with statement."""
    client = connect(uri, named)
    try:
        yield client
    finally:
        disconnect(client, uri)


@contextmanager
def translated_errors(uri: str) -> Iterator[None]:
    """Turn errors of Milvus into an OSError with one line."""
    from pymilvus.exceptions import MilvusException

    try:
        yield
    except MilvusException as error:
        first_line = str(error.message).strip().partition("\n")[0]
        raise OSError(f"Milvus at {uri}: {first_line or 'failed'}") from error


def _is_locked(uri: str) -> bool:
    """Milvus holds a lock beside its file while that is open."""
    if not (Path(uri) / "LOCK").is_file():
        return False
    try:
        with FileLock(Path(uri) / "LOCK", timeout=0):
            return False
    except Timeout:
        return True
