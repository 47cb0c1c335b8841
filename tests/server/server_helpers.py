"""Helpers for the server's tests: keys, pictures as bytes, and servers on a real port."""

import io
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

import numpy as np
import uvicorn
from fastapi import FastAPI
from PIL import Image

from lookalike import index
from lookalike.index.contents import marked_pictures
from lookalike.index.marks import Marks
from lookalike.server.connection import guarded_protocol

READ, WRITE = "a key for looking at it", "a key for changing it too"
COMMAND = [sys.executable, "-m", "lookalike", "serve"]


def noise(width: int, height: int, seed: int = 7) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def encoded(image: Image.Image, kind: str = "PNG", **settings: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


@contextmanager
def in_thread(app: FastAPI) -> Iterator[tuple[str, uvicorn.Server]]:
    listener = socket.create_server(("127.0.0.1", 0))
    protocol = guarded_protocol(app.state.context.limits)
    server = uvicorn.Server(uvicorn.Config(app, http=protocol, log_config=None, timeout_graceful_shutdown=20))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", server
    finally:
        server.should_exit = True
        thread.join(30)
        listener.close()


@contextmanager
def in_process(
    index_folder: Path, *more: str, environment: dict[str, str] | None = None
) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """``lookalike serve``, ready to answer."""
    process = subprocess.Popen(
        [*COMMAND, str(index_folder), "--port", "0", "--json", "--device", "cpu", *more],
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


def mark_what_it_knows(path: Path) -> None:
    """The nearest are the same and the farthest are not: no model can be worse on such marks by chance."""
    with index.open(path) as idx, Marks(path) as marks:
        ids = [item.id for item in idx.items()]
        idx.add([item._replace(label="") for item in idx.items()], idx.vectors(ids))  # nothing is held out but marks
        used: set[str] = set()
        for query in ids[::4]:
            hits = [hit.item.id for hit in idx.search(idx.vectors([query]), len(ids))[0] if hit.item.id != query]
            free = [other for other in hits if other not in used]
            if query in used or len(free) < 8:
                continue
            chosen = [query, *free[:2], *free[-2:]]
            used.update(chosen)
            first, *others = marked_pictures(idx, chosen)
            for number, other in enumerate(others):
                marks.add(first, other, "same" if number < 2 else "different")
