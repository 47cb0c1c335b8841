"""``lookalike serve INDEX``: search an index in a browser and over HTTP."""

import ipaddress
import json
import logging
import os
import socket
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookalike._util.settings import setting
from lookalike._util.signals import StopRequest
from lookalike.cli.arguments import JSON, REQUIRED, UsageError, parse
from lookalike.cli.interrupt import exit_on_interrupt
from lookalike.cli.output import print_result, print_status
from lookalike.inference.engine_name import ENGINE_HELP, EngineName

if TYPE_CHECKING:
    from lookalike.server import Keys

DESCRIPTION = """Serve an index: a page to search by pictures, and an HTTP API (see /openapi.json). By default only this
machine can connect; any other --host needs keys. Keys come from files, one per line, or from the environment variables
LOOKALIKE_READ_KEY and LOOKALIKE_WRITE_KEY. A read key allows searching; a write key also allows adding and deleting.
Quotas are unlimited unless set, here for every key or in a key file for one."""
EXAMPLE = "lookalike serve birds.idx --port 8000"


@dataclass
class ServeSettings:
    """Options of ``lookalike serve``."""

    index: Path = setting(REQUIRED, "folder of an index, made by lookalike index")
    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for all addresses of this machine")
    port: int = setting(8000, "port to listen on; 0 for any free port", least=0, up_to=65535)
    names: list[str] | None = setting(None, "host names of this server, for example search.example.org")
    read_key_file: Path | None = setting(None, "file with keys for searching, one per line")
    write_key_file: Path | None = setting(None, "file with keys for searching, adding and deleting, one per line")
    upload_megabytes: float = setting(20.0, "largest request", above=0, below=1_000_000)
    megapixels: float = setting(50.0, "largest uploaded picture", above=0, below=1_000_000)
    queue: int = setting(64, "pictures that may wait for the model; further requests get status 503")
    batch_size: int = setting(16, "pictures that go through the model at once")
    seconds: float = setting(30.0, "time limit of a request")
    header_seconds: float = setting(10.0, "time for the headers of a request to arrive", above=0)
    max_items: int | None = setting(None, "items in the index; null: any number", least=1)
    reads_per_minute: int | None = setting(None, "requests that read, per key; null: any number", least=1)
    writes_per_minute: int | None = setting(None, "requests that add or delete, per key", least=1)
    items_per_minute: int | None = setting(None, "pictures added, per key", least=1)
    megabytes_per_minute: float | None = setting(None, "uploads, per key", above=0)
    access_log: bool = setting(False, "log every request to stderr")
    device: str | None = setting(None, "cpu, cuda, ...; null: a GPU if there is one")
    engine: EngineName = setting("auto", ENGINE_HELP)
    store: str | None = setting(
        None, "address of the Milvus server that may receive LOOKALIKE_MILVUS_TOKEN; null: LOOKALIKE_MILVUS_URI"
    )


def run(argv: list[str]) -> int:
    """Run ``lookalike serve`` with the words after its name, and return the exit code."""
    settings, flags = parse(ServeSettings, argv, "serve", DESCRIPTION, EXAMPLE, positional=["index"], flags=JSON)
    with exit_on_interrupt():
        import uvicorn

        from lookalike import index
        from lookalike.server import Keys, Limits, Quota, create_app
        from lookalike.server.connection import guarded_protocol

    keys = Keys.load(settings.read_key_file, settings.write_key_file, os.environ)
    _require_keys(settings, keys)
    _warn_of_readable_keys(settings)
    limits = Limits(
        upload_bytes=round(1e6 * settings.upload_megabytes),
        pixels=round(1e6 * settings.megapixels),
        queue=settings.queue,
        batch=settings.batch_size,
        seconds=settings.seconds,
        header_seconds=settings.header_seconds,
        items=settings.max_items,
    )
    quota = Quota(
        settings.reads_per_minute, settings.writes_per_minute, settings.items_per_minute, settings.megabytes_per_minute
    )
    level = logging.WARNING
    if settings.access_log:
        level = logging.INFO
    logging.basicConfig(level=level)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # malformed requests must not fill the log
    warnings.filterwarnings("ignore", module="PIL")
    with (
        StopRequest().listening() as stop,
        _bind(settings.host, settings.port) as listener,
        index.open(settings.index, settings.store) as idx,
    ):
        print_status(f"loading the model of {settings.index} ...")
        model = idx.model(settings.device, settings.engine)
        app = create_app(idx, model, keys=keys, limits=limits, quota=quota, hosts=_accepted_hosts(settings))
        config = uvicorn.Config(
            app,
            http=guarded_protocol(limits),
            ws="none",
            loop="asyncio",
            log_config=None,
            access_log=settings.access_log,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=round(limits.seconds) + 5,
        )
        count = idx.info()["count"]  # also builds the search structures, so that the first search is fast
        stop.check()
        listener.listen(config.backlog)  # before the address is printed: clients may connect at once
        _announce(settings, listener, count, keys, as_json=bool(flags))
        uvicorn.Server(config).run(sockets=[listener])  # on SIGINT and SIGTERM it finishes open requests and returns
    return 0


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to an address.

    Examples:
        >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0"), is_loopback("example.org")
        (True, True, False, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _require_keys(settings: ServeSettings, keys: "Keys") -> None:
    if keys:
        return
    if not is_loopback(settings.host):
        raise UsageError(
            f"--host {settings.host} is open to other machines and needs a key: --read-key-file FILE, "
            "--write-key-file FILE, or LOOKALIKE_READ_KEY or LOOKALIKE_WRITE_KEY in the environment"
        )
    if settings.names:
        print_status(
            f"lookalike serve: no keys are set: everybody who reaches {settings.names[0]} can search, add and delete, "
            "unless a proxy in front of this server checks access"
        )


def _warn_of_readable_keys(settings: ServeSettings) -> None:
    for file in (settings.read_key_file, settings.write_key_file):
        if file is not None and os.name == "posix" and file.expanduser().stat().st_mode & 0o077:
            print_status(f"lookalike serve: other users of this machine can read {file}: chmod 600 {file}")


def _accepted_hosts(settings: ServeSettings) -> list[str] | None:
    """Host names that requests may use; None for any, which is safe because other addresses need keys."""
    from lookalike.server.middleware import LOOPBACK_NAMES

    if not is_loopback(settings.host) and not settings.names:
        return None
    return [*LOOPBACK_NAMES, settings.host, *(settings.names or [])]


def _bind(host: str, port: int) -> socket.socket:
    """Bind the port before anything is loaded: a port in use is reported at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror or error}") from None
    return listener


def _announce(settings: ServeSettings, listener: socket.socket, count: int, keys: "Keys", *, as_json: bool) -> None:
    port = listener.getsockname()[1]
    host = settings.host
    if ":" in host:  # IPv6
        host = f"[{host.strip('[]')}]"
    address = f"http://{host}:{port}/"
    report: dict[str, Any] = {
        "url": address,
        "items": count,
        "keys": {"read": len(keys.read), "write": len(keys.write)},
    }
    if as_json:
        print(json.dumps(report), flush=True)
        return
    print_result(f"{count:,} pictures at {address} (Ctrl-C to stop)")
