"""A server at a real port: in a thread of this process, or a process of its own."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI

COMMAND = [sys.executable, "-m", "lookalike", "serve"]


@contextmanager
def in_thread(app: FastAPI) -> Iterator[tuple[str, uvicorn.Server]]:
    door = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, http="h11", log_config=None, timeout_graceful_shutdown=20))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{door.getsockname()[1]}", server
    finally:
        server.should_exit = True
        thread.join(30)
        door.close()


@contextmanager
def in_process(
    home: Path, *more: str, environment: dict[str, str] | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """``lookalike serve``, ready to answer."""
    process = subprocess.Popen(
        [*COMMAND, str(home), "--port", "0", "--json", "--device", "cpu", *more],
        env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        yield json.loads(line)["url"].rstrip("/"), process
    finally:
        process.kill()
        process.communicate()
