"""``lookalike serve IDX``"""

import ipaddress
import json
import logging
import os
import socket
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookalike._util.settings import setting
from lookalike._util.signals import StopRequest
from lookalike.cli.arguments import JSON, UsageError, parse
from lookalike.cli.interrupt import exit_on_interrupt

if TYPE_CHECKING:
    from lookalike.server import Keys

DESCRIPTION = """Serve an index: a page to search by pictures, and the same for programs (see /openapi.json). Only this
machine reaches it unless --host says otherwise, and then keys are needed. They come from files, one key per line, or
from LOOKALIKE_READ_KEY and LOOKALIKE_WRITE_KEY in the environment. A read key reads; a write key also adds and
deletes."""
EXAMPLE = "lookalike serve birds.idx --port 8000"


@dataclass
class ServeSettings:
    index: Path | None = setting(None, "folder of an index, as lookalike index makes it")
    host: str = setting("127.0.0.1", "address to listen at; 0.0.0.0 for all of this machine's")
    port: int = setting(8000, "port to listen at; 0 for any that is free")
    names: list[str] = setting(None, "names by which others call this server, search.example.org say")
    read_key_file: Path | None = setting(None, "file with the keys of those who may read, one per line")
    write_key_file: Path | None = setting(None, "file with the keys of those who may also add and delete")
    upload_megabytes: float = setting(20.0, "the most that a request may hold")
    megapixels: float = setting(50.0, "the most that an uploaded picture may have")
    queue: int = setting(64, "pictures that may wait for the model; more are told to come back")
    batch_size: int = setting(16, "pictures that go through the model at once")
    seconds: float = setting(30.0, "time for an answer")
    access_log: bool = setting(False, "write a line for every request to stderr")
    device: str | None = setting(None, "cpu, cuda, ...; null: a GPU if there is one")

    def __post_init__(self) -> None:
        self.names = self.names or []
        if not 0 <= self.port <= 65535:
            raise ValueError(f"port must be from 0 to 65535, got {self.port}")
        for name in ("upload_megabytes", "megapixels"):
            if not 0 < getattr(self, name) < 1e6:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")


def run(argv: list[str]) -> int:
    settings, flags = parse(
        ServeSettings,
        argv,
        prog="lookalike serve",
        description=DESCRIPTION,
        example=EXAMPLE,
        positional=["index"],
        flags=JSON,
    )
    if settings.index is None:
        raise UsageError("say which index: lookalike serve IDX")
    with exit_on_interrupt():
        import uvicorn

        from lookalike import index
        from lookalike.server import Keys, Limits, create_app

    keys = Keys.load(settings.read_key_file, settings.write_key_file, os.environ)
    _refuse_open_doors(settings, keys)
    limits = Limits(
        upload_bytes=round(1e6 * settings.upload_megabytes),
        pixels=round(1e6 * settings.megapixels),
        queue=settings.queue,
        batch=settings.batch_size,
        seconds=settings.seconds,
    )
    logging.basicConfig(level=logging.INFO if settings.access_log else logging.WARNING)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # strangers shall not fill the log
    warnings.filterwarnings("ignore", module="PIL")
    with (
        StopRequest().listening() as stop,
        _listening(settings.host, settings.port) as door,
        index.open(settings.index) as idx,
    ):
        print(f"loading the model of {settings.index} ...", file=sys.stderr, flush=True)
        app = create_app(idx, idx.model(settings.device), keys=keys, limits=limits, hosts=_names(settings))
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            loop="asyncio",
            log_config=None,
            access_log=settings.access_log,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=round(limits.seconds) + 5,
        )
        count = idx.info()["count"]  # which also builds what searches need, so that the first does not wait for it
        stop.check()
        door.listen(config.backlog)  # who reads what is announced may come at once
        _announce(settings, door, count, keys, as_json=bool(flags))
        uvicorn.Server(config).run(sockets=[door])  # SIGINT and SIGTERM end it, once all answers are out
    return 0


def is_loopback(host: str) -> bool:
    """
    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("example.org")
    (True, True, False, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _refuse_open_doors(settings: ServeSettings, keys: "Keys") -> None:
    if keys:
        return
    if not is_loopback(settings.host):
        raise UsageError(
            f"at {settings.host} others can reach the server, so it needs a key: --read-key-file FILE or "
            "--write-key-file FILE, or LOOKALIKE_READ_KEY or LOOKALIKE_WRITE_KEY in the environment"
        )
    if settings.names:
        print(
            f"lookalike serve: no keys are set: whoever reaches {settings.names[0]} may search, add and delete, "
            "unless what stands before this server asks who they are",
            file=sys.stderr,
        )


def _names(settings: ServeSettings) -> list[str] | None:
    """Those to go by. Elsewhere than on loopback any name does, unless some are given: there are keys."""
    from lookalike.server.middleware import LOOPBACK_NAMES

    if not is_loopback(settings.host) and not settings.names:
        return None
    return [*LOOPBACK_NAMES, settings.host, *settings.names]


def _listening(host: str, port: int) -> socket.socket:
    """Before anything is loaded, so that a port that is taken is said at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        door = socket.socket(family, kind, protocol)
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind(address)
    except OSError as error:
        raise OSError(f"cannot listen at {host}:{port}: {error.strerror or error}") from None
    return door


def _announce(settings: ServeSettings, door: socket.socket, count: int, keys: "Keys", *, as_json: bool) -> None:
    port = door.getsockname()[1]
    host = f"[{settings.host.strip('[]')}]" if ":" in settings.host else settings.host
    address = f"http://{host}:{port}/"
    report: dict[str, Any] = {
        "url": address,
        "items": count,
        "keys": {"read": len(keys.read), "write": len(keys.write)},
    }
    if as_json:
        print(json.dumps(report), flush=True)
        return
    print(f"{count:,} pictures at {address} (Ctrl-C ends it)", flush=True)
