"""``lookalike serve INDEX``: search an index in a browser and over HTTP."""

import ipaddress
import json
import logging
import os
import socket
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lookalike._util.settings import setting
from lookalike._util.signals import Stopped, StopRequest
from lookalike.cli.arguments import JSON, REQUIRED, UsageError, parse
from lookalike.cli.interrupt import exit_on_interrupt
from lookalike.cli.output import print_result, print_status
from lookalike.inference.engine_name import ENGINE_HELP, EngineName

if TYPE_CHECKING:
    from lookalike.server import Keys, Limits, Quota

DESCRIPTION = """Serve an index: a page to search by pictures, and an HTTP API (see /openapi.json). By default only this
machine can connect; any other --host needs keys. Keys come from files, one per line, or from the environment variables
LOOKALIKE_READ_KEY and LOOKALIKE_WRITE_KEY. A read key allows searching; a write key also allows adding and deleting.
Quotas are unlimited unless set, here for every key or in a key file for one."""
EXAMPLE = "lookalike serve birds.idx --port 8000"

GRACE = 15.0  # seconds that a worker may take to end, in addition to those of a request
SWITCH_SECONDS = 0.001  # that a thread keeps Python's lock while others wait: a search needs it often, but not for long
WRITE_PATIENCE = 10.0  # seconds that a worker waits while another one writes


@dataclass
class ServeSettings:
    """Options of ``lookalike serve``."""

    index: Path = setting(REQUIRED, "folder of an index, made by lookalike index")
    host: str = setting("127.0.0.1", "address to listen on; 0.0.0.0 for all addresses of this machine")
    port: int = setting(8000, "port to listen on; 0 for any free port", least=0, up_to=65535)
    names: list[str] | None = setting(None, "host names of this server, for example search.example.org")
    proxies: list[str] | None = setting(
        None, "addresses of proxies whose X-Forwarded-For names the client, for example 127.0.0.1"
    )
    read_key_file: Path | None = setting(None, "file with keys for searching, one per line")
    write_key_file: Path | None = setting(None, "file with keys for searching, adding and deleting, one per line")
    upload_megabytes: float = setting(20.0, "largest request", above=0, below=1_000_000)
    megapixels: float = setting(50.0, "largest uploaded picture", above=0, below=1_000_000)
    queue: int = setting(64, "pictures that may wait for the model; further requests get status 503")
    batch_size: int = setting(16, "pictures that go through the model at once")
    workers: int = setting(1, "processes that answer requests, each with its own model", least=1, up_to=64)
    read_only: bool = setting(False, "refuse additions and deletions: a replica beside the server that writes")
    seconds: float = setting(30.0, "time limit of a request")
    header_seconds: float = setting(10.0, "time for the headers of a request to arrive", above=0)
    max_items: int | None = setting(None, "items in the index; null: any number", least=1)
    reads_per_minute: int | None = setting(None, "requests that read, per key; null: any number", least=1)
    writes_per_minute: int | None = setting(None, "requests that add, delete, mark or label, per key", least=1)
    items_per_minute: int | None = setting(None, "pictures added, per key", least=1)
    megabytes_per_minute: float | None = setting(None, "uploads, per key", above=0)
    map_layout: Literal["auto", "umap", "tsne", "pca"] = setting(
        "auto",
        "how the map is arranged: umap (needs the extra map), tsne, pca; auto: the best for the number of pictures",
    )
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
        from lookalike import index
        from lookalike.index.layout import resolve_method
        from lookalike.server.keys import Keys
        from lookalike.server.workers import Workers

    resolve_method(settings.map_layout, 0)
    keys = Keys.load(settings.read_key_file, settings.write_key_file, os.environ)
    _require_keys(settings, keys)
    _warn_of_readable_keys(settings)
    limits = _limits(settings)
    _quota(settings)
    if settings.workers > 1:
        _require_shared_store(settings)
    _configure_logging(settings)
    with StopRequest().listening() as stop, _bind(settings.host, settings.port) as listener:
        if settings.workers == 1:
            _serve(settings, listener, stop, lambda count: _announce(settings, listener, count, keys, bool(flags)))
            return 0
        with index.open(settings.index, settings.store) as idx:
            count = idx.count()
        workers = Workers(settings.workers, serve_worker, (settings, listener), limits.seconds + GRACE)
        workers.run(stop, lambda: _announce(settings, listener, count, keys, bool(flags)))
    return 0


def serve_worker(folder: Path, ready: Any, settings: ServeSettings, listener: socket.socket) -> None:
    """Serve as one of several workers; they share ``folder``. Sets ``ready`` when requests are answered."""
    _configure_logging(settings)
    try:
        with StopRequest().listening() as stop:
            _serve(settings, listener, stop, lambda _: ready.set(), folder)
    except Stopped:
        return
    except (OSError, ValueError) as error:
        print_status(f"lookalike serve: {error}")
        raise SystemExit(1) from None


def _serve(
    settings: ServeSettings,
    listener: socket.socket,
    stop: StopRequest,
    on_ready: Callable[[int], None],
    folder: Path | None = None,
) -> None:
    """Serve on a bound socket until a signal comes; ``folder`` is shared with other workers."""
    import uvicorn

    from lookalike import index
    from lookalike.server import Keys, SharedBuckets, create_app
    from lookalike.server.connection import guarded_protocol
    from lookalike.server.reloading import ReloadingApp

    sys.setswitchinterval(SWITCH_SECONDS)
    limits = _limits(settings)
    keys = Keys.load(settings.read_key_file, settings.write_key_file, os.environ)
    with index.open(settings.index, settings.store) as idx, ExitStack() as stack:
        buckets = None
        if folder is not None:
            buckets = SharedBuckets(folder / "quotas.sqlite")
        if folder is None:
            print_status(f"loading the model of {settings.index} ...")
        model = idx.model(settings.device, settings.engine)

        def make_app(opened: Any, loaded: Any, previous: Any) -> Any:
            if folder is not None:
                opened.writing.patience = min(WRITE_PATIENCE, limits.seconds / 2)
            others = {}
            for name in opened.second_models():
                second = opened.open_model(name)
                stack.callback(second.close)
                others[name] = (second, second.model(settings.device, settings.engine))
            app = create_app(
                opened,
                loaded,
                keys=keys,
                limits=limits,
                quota=_quota(settings),
                hosts=_accepted_hosts(settings),
                proxies=settings.proxies or [],
                buckets=buckets,
                read_only=settings.read_only,
                previous=previous,
                layout=settings.map_layout,
                others=others,
            )
            # Made by the first request for it, it would hold up all others.
            threading.Thread(target=app.openapi, name="openapi", daemon=True).start()
            return app

        def make_current_app(previous: Any) -> Any:
            opened = index.open(settings.index, settings.store)
            return make_app(opened, opened.model(settings.device, settings.engine), previous)

        app = ReloadingApp(make_app(idx, model, None), make_current_app)
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
        on_ready(count)
        server = _create_server(config, stop)
        server.run(sockets=[listener])  # on SIGINT and SIGTERM it finishes open requests and returns


def _limits(settings: ServeSettings) -> "Limits":
    from lookalike.server import Limits

    return Limits(
        upload_bytes=round(1e6 * settings.upload_megabytes),
        pixels=round(1e6 * settings.megapixels),
        queue=settings.queue,
        batch=settings.batch_size,
        seconds=settings.seconds,
        header_seconds=settings.header_seconds,
        items=settings.max_items,
    )


def _quota(settings: ServeSettings) -> "Quota":
    from lookalike.server import Quota

    return Quota(
        settings.reads_per_minute, settings.writes_per_minute, settings.items_per_minute, settings.megabytes_per_minute
    )


def _configure_logging(settings: ServeSettings) -> None:
    level = logging.WARNING
    if settings.access_log:
        level = logging.INFO
    logging.basicConfig(level=level)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # malformed requests must not fill the log
    warnings.filterwarnings("ignore", module="PIL")


def _require_shared_store(settings: ServeSettings) -> None:
    """An embedded Milvus serves one process."""
    from lookalike.index.milvus_connection import is_address
    from lookalike.index.storage import About

    about = About.read(settings.index)
    if about.backend == "milvus" and not is_address(about.store):
        raise UsageError(
            f"--workers {settings.workers} needs an index in FAISS or on a Milvus server: {settings.index} is in a "
            "Milvus file, which serves one process"
        )


def _create_server(config: Any, stop: StopRequest) -> Any:
    """A server that also ends for a signal that came before uvicorn listened for signals."""
    import uvicorn

    class Server(uvicorn.Server):
        async def on_tick(self, counter: int) -> bool:
            return await super().on_tick(counter) or stop.requested != 0

    return Server(config)


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


def _announce(settings: ServeSettings, listener: socket.socket, count: int, keys: "Keys", as_json: bool) -> None:
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
