"""Attacks on a running server, while a well-behaved client works: memory, waiting times, answers by status.

    python perf/abuse.py --json abuse.json --quick
    python perf/abuse.py --items 50000 --only filter

The server is a process on the loopback interface with a small random model and 20,000 items. Each attack runs for a
bounded number of requests, by attackers with four keys in turn. Memory is the sum over the server and its processes,
above the idle server. The well-behaved client is a process with a key of its own; it sends one search after the other.
Exit code 1 if a promise is broken.
"""

import argparse
import io
import json
import os
import secrets
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx
import numpy as np
from PIL import Image

MOST_MEGABYTES = 1500
MOST_SECONDS = 2.0
PARALLEL = 40
ITEMS, LONG_ITEMS = 20_000, 300  # the latter with nearly the longest metadata
KEY_VARIABLE = "ABUSE_KEY"  # of the well-behaved client, for its process
ATTACKERS = 4  # keys that attackers use in turn
GOOD_KEY, WRITE_KEY = (secrets.token_urlsafe(24) for _ in range(2))
BAD_KEYS = [secrets.token_urlsafe(24) for _ in range(ATTACKERS)]


class Attack(NamedTuple):
    name: str
    send: Callable[[tuple[str, int], int], int]  # address and number of the request -> status, 0 if the server hung up
    requests: int


class Memory(threading.Thread):
    """Samples the memory of a process and its children."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.peak = 0
        self.stopped = threading.Event()

    def run(self) -> None:
        while not self.stopped.wait(0.02):
            self.peak = max(self.peak, memory_of(self.pid))


class Answer(NamedTuple):
    """One search of the well-behaved client: when it was sent, seconds until the answer, and its status."""

    sent: float
    seconds: float
    status: int


class GoodClient(threading.Thread):
    """Reads what the process of the well-behaved client reports; attackers must not take its processor time."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(daemon=True)
        command = [sys.executable, __file__, "--search", f"{address[0]}:{address[1]}"]
        environment = {**os.environ, KEY_VARIABLE: GOOD_KEY}
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.answers: list[Answer] = []
        self.start()

    def run(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            sent, seconds, status = line.split()
            self.answers.append(Answer(float(sent), float(seconds), int(status)))

    def answers_between(self, start: float, end: float) -> list[Answer]:
        """Wait until all searches that were sent before the end are answered."""
        until = time.monotonic() + 90
        while (not self.answers or self.answers[-1].sent <= end) and time.monotonic() < until:
            time.sleep(0.05)
        return [answer for answer in self.answers if answer.sent <= end and answer.sent + answer.seconds >= start]


def search_for_ever(address: tuple[str, int]) -> None:
    """Send one search after the other and report it."""
    picture = encoded(noise(375, 500), "JPEG")
    while True:
        sent = time.monotonic()
        status = post(address, "/search", picture, key=os.environ[KEY_VARIABLE])
        print(sent, time.monotonic() - sent, status, flush=True)
        time.sleep(0.02)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report to this file")
    parser.add_argument("--quick", action="store_true", help="a quarter of the requests")
    parser.add_argument("--items", type=int, default=ITEMS, metavar="N", help=f"items in the index ({ITEMS:,})")
    parser.add_argument("--only", default="", metavar="TEXT", help="only attacks with this text in their name")
    parser.add_argument("--search", metavar="HOST:PORT", help=argparse.SUPPRESS)  # the well-behaved client
    options = parser.parse_args(arguments)
    if options.search:
        host, port = options.search.split(":")
        search_for_ever((host, int(port)))
    rows = []
    good = None
    with TemporaryDirectory() as folder:
        process, address = start_server(Path(folder), options.items)
        try:
            good = GoodClient(address)
            while not good.answers:
                time.sleep(0.1)
            time.sleep(1)
            idle = memory_of(process.pid)
            for attack in attacks(options.items):
                if options.only not in attack.name:
                    continue
                requests = attack.requests
                if options.quick:
                    requests = max(1, requests // 4)
                rows.append(run_attack(process.pid, address, attack, requests, idle, good))
                print_row(rows[-1])
            good.process.kill()
            process.terminate()
            started = time.perf_counter()
            exit_code = process.wait(60)
            shutdown = time.perf_counter() - started
        finally:
            process.kill()
            if good is not None:
                good.process.kill()
    report = summary(rows, idle, shutdown, exit_code)
    print(json.dumps({key: value for key, value in report.items() if key != "attacks"}))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(bool(report["broken"]))


def run_attack(
    pid: int, address: tuple[str, int], attack: Attack, requests: int, idle: int, good: GoodClient
) -> dict[str, Any]:
    memory = Memory(pid)
    memory.start()
    started = time.monotonic()
    with ThreadPoolExecutor(PARALLEL) as threads:
        statuses = Counter(threads.map(lambda i: attack.send(address, i), range(requests)))
    ended = time.monotonic()
    answers = good.answers_between(started, ended)
    memory.stopped.set()
    memory.join()
    return {
        "attack": attack.name,
        "requests": requests,
        "seconds": round(ended - started, 1),
        "megabytes": round((memory.peak - idle) / 1e6),
        "longest_wait": round(max(answer.seconds for answer in answers), 2),
        "statuses": dict(sorted(statuses.items())),
        "good_statuses": dict(sorted(Counter(answer.status for answer in answers).items())),
    }


def summary(rows: list[dict[str, Any]], idle: int, shutdown: float, exit_code: int) -> dict[str, Any]:
    statuses: Counter[int] = Counter()
    good: Counter[int] = Counter()
    for row in rows:
        statuses.update(row["statuses"])
        good.update(row["good_statuses"])
    megabytes = max(row["megabytes"] for row in rows)
    longest = max(row["longest_wait"] for row in rows)
    broken = []
    if megabytes > MOST_MEGABYTES:
        broken.append("memory")
    if longest > MOST_SECONDS:
        broken.append("waiting")
    if any(status >= 500 and status != 503 for status in [*statuses, *good]):
        broken.append("statuses")
    if exit_code != 0:
        broken.append("shutdown")
    return {
        "idle_megabytes": round(idle / 1e6),
        "peak_megabytes_above_idle": megabytes,
        "longest_wait_seconds": longest,
        "statuses": dict(sorted(statuses.items())),
        "good_statuses": dict(sorted(good.items())),
        "shutdown_seconds": round(shutdown, 1),
        "broken": broken,
        "attacks": rows,
    }


def print_row(row: dict[str, Any]) -> None:
    print(
        f"{row['attack']:28} {row['requests']:5} requests {row['seconds']:6.1f} s {row['megabytes']:6} MB "
        f"wait {row['longest_wait']:5.2f} s  {row['statuses']}  good {row['good_statuses']}",
        flush=True,
    )


def attacks(items: int) -> list[Attack]:
    """All attacks; files are made once."""
    scans = many_scans(encoded(Image.new("RGB", (2000, 2000), "gray"), "JPEG", progressive=True), 6000)
    allowed_scans = many_scans(encoded(Image.new("RGB", (2200, 2200), "gray"), "JPEG", progressive=True), 180)
    large_png = encoded(Image.new("RGB", (7000, 7000)), "PNG")
    large_alpha = encoded(Image.new("RGBA", (7000, 7000)), "PNG")
    deep = encoded(Image.new("I;16", (7000, 7000)), "PNG")
    jpeg2000 = encoded(noise(2000, 2000), "JPEG2000")
    markers = b"\xff\xd8" + 4_000_000 * b"\xff\xef\x00\x02"
    chunks = b"\x89PNG\r\n\x1a\n" + png_header(10, 10) + 1_500_000 * chunk(b"teSt", b"")
    small = encoded(noise(30, 40), "PNG")
    nested = {"metadata": '{"a":' + 900 * "[" + 900 * "]" + "}"}
    wide = {"metadata": json.dumps({f"k{i}": i for i in range(1200)})}
    long_filter = {"where": " , ".join(f"k{i}=1" for i in range(1100))}
    connections: list[socket.socket] = []
    odd_k = ("00000001299999", "000000001500", "1e3", "\u0665", "-1", "9" * 5000)

    def picture(data: bytes, path: str = "/embed") -> Callable[[tuple[str, int], int], int]:
        return lambda address, i: post(address, path, data, key=bad_key(i))

    return [
        Attack("nothing", lambda *_: rest(), 400),  # what the client waits for by itself
        Attack("extreme sides, truncated", picture(header_of_png(1, 50_000_000), "/explain"), 80),
        Attack("extreme sides, allowed", picture(encoded(Image.new("L", (160, 32_000)), "PNG"), "/explain"), 80),
        Attack("JPEG with 6,000 scans", picture(scans), 80),
        Attack("MPO with 6,000 scans", picture(as_mpo(scans)), 80),
        Attack("JPEG with 190 scans", picture(allowed_scans), 80),
        Attack("bomb beyond the limit", picture(header_of_png(30_000, 30_000)), 80),
        Attack("40 parallel PNGs of 49 MP", picture(large_png), 80),
        Attack("49 MP with transparency", picture(large_alpha), 40),
        Attack("49 MP of 16 bits", picture(deep), 40),
        Attack("JPEG 2000 of 4 MP", picture(jpeg2000), 40),
        Attack("4 million JPEG markers", picture(markers), 40),
        Attack("1.5 million PNG chunks", picture(chunks), 40),
        Attack("20 MB of zeros", picture(bytes(19_900_000)), 80),
        Attack("metadata, 900 levels", lambda a, _: post(a, "/items", small, nested, WRITE_KEY), 80),
        Attack("metadata, 1,200 keys", lambda a, _: post(a, "/items", small, wide, WRITE_KEY), 80),
        Attack("odd k", lambda a, i: post(a, "/search", small, {"k": odd_k[i % len(odd_k)]}, bad_key(i)), 120),
        Attack("1,100 filter conditions", lambda a, i: post(a, "/search", small, long_filter, bad_key(i)), 80),
        Attack("odd methods", lambda a, i: raw(a, f"M{i}X /items HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()), 400),
        Attack("half-sent headers", lambda a, _: raw(a, b"POST /embed HTTP/1.1\r\nHost: local", wait=3), 80),
        Attack("torn chunks", lambda a, _: raw(a, torn_chunk(), end=True), 200),
        Attack("pages of long metadata", lambda a, i: get(a, "/items?limit=500", bad_key(i)), 120),
        Attack("200 hits of long metadata", lambda a, i: post(a, "/search", small, {"k": "200"}, bad_key(i)), 120),
        Attack("answers that nobody reads", unread(connections, "/items?limit=500"), 200),
        Attack("the map, unread", unread(connections, "/map"), 200),
        Attack("filters that read all rows", lambda a, i: get(a, f"/items?where=n%3E{items + i}", bad_key(i)), 120),
        Attack("long filters", lambda a, i: get(a, f"/items?where={conditions(items + i)}", bad_key(i)), 120),
        Attack("filters on unknown keys", lambda a, i: get(a, f"/items?where=key{i}%3E1", bad_key(i)), 120),
        Attack("filtered searches", filtered_search(small), 120),
        Attack("pictures to explain", picture(small, "/explain"), 400),
        Attack("bad keys", lambda a, i: post(a, "/search", small, key=f"a wrong key, number {i}"), 400),
    ]


def rest() -> int:
    time.sleep(0.5)
    return 200


def bad_key(i: int) -> str:
    return BAD_KEYS[i % len(BAD_KEYS)]


def conditions(number: int) -> str:
    """A filter of 99 conditions, of which the last holds for no item; each is another filter."""
    return "%2C".join([*(f"n!%3D{-i}" for i in range(1, 99)), f"n%3E{number}"])


def filtered_search(picture: bytes) -> Callable[[tuple[str, int], int], int]:
    return lambda address, i: post(address, "/search", picture, {"where": f"n>{i}", "k": "200"}, bad_key(i))


def post(
    address: tuple[str, int], path: str, data: bytes, fields: dict[str, str] | None = None, key: str = BAD_KEYS[0]
) -> int:
    """Send a form; return the status, or 0 if the server closed the connection."""
    try:
        with httpx.Client(verify=False, timeout=60, headers={"X-API-Key": key}) as client:
            url = f"http://{address[0]}:{address[1]}{path}"
            return client.post(url, files={"picture": data}, data=fields or {}).status_code
    except httpx.HTTPError:
        return 0


def get(address: tuple[str, int], path: str, key: str) -> int:
    """Send a GET; return the status, or 0 if the server closed the connection."""
    try:
        with httpx.Client(verify=False, timeout=60, headers={"X-API-Key": key}) as client:
            return client.get(f"http://{address[0]}:{address[1]}{path}").status_code
    except httpx.HTTPError:
        return 0


def unread(sockets: list[socket.socket], path: str) -> Callable[[tuple[str, int], int], int]:
    """Ask for a page and read only its status; the connections stay open."""

    def send(address: tuple[str, int], i: int) -> int:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(30)
        sockets.append(connection)
        try:
            connection.connect(address)
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {bad_key(i)}\r\n\r\n".encode())
            return int(connection.recv(12).split()[1])
        except (OSError, IndexError, ValueError):
            return 0

    return send


def raw(address: tuple[str, int], request: bytes, *, wait: float = 30, end: bool = False) -> int:
    """Send bytes; return the status, or 0 if there is none within ``wait`` seconds."""
    try:
        with socket.create_connection(address, wait) as connection:
            connection.sendall(request)
            if end:
                connection.shutdown(socket.SHUT_WR)
            return int(connection.recv(4096).split(None, 2)[1])
    except (OSError, IndexError, ValueError):
        return 0


def torn_chunk() -> bytes:
    head = "POST /embed HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    head += f"X-API-Key: {BAD_KEYS[0]}\r\nContent-Type: multipart/form-data; boundary=x\r\n\r\n"
    return head.encode() + b"ffff\r\n--x\r\nContent-Dispos"


def start_server(folder: Path, count: int) -> tuple["subprocess.Popen[str]", tuple[str, int]]:
    import torch  # the process of the well-behaved client starts without it

    from lookalike import index
    from lookalike.models import Embedder, create_backbone, save_model

    torch.manual_seed(0)
    save_model(Embedder(create_backbone("resnet8-half", weights="none"), dim=8, pooling="gsp"), folder / "run")
    with index.create(folder / "small.idx", run=folder / "run") as idx:
        vectors = np.random.default_rng(0).standard_normal((count, 8)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        items = [index.Item(f"{i:06}", "", f"class{i % 4}", {"n": i}) for i in range(count)]
        for i in range(LONG_ITEMS):
            items[i].metadata.update({f"k{j}": 110 * "x" for j in range(250)})
        idx.add(items, vectors)
    for name, keys in (("read", "\n".join([GOOD_KEY, *BAD_KEYS, ""])), ("write", f"{WRITE_KEY}\n")):
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(keys)
    command = [sys.executable, "-m", "lookalike", "serve", str(folder / "small.idx"), "--port", "0", "--json"]
    command += ["--device", "cpu", "--read-key-file", str(folder / "read"), "--write-key-file", str(folder / "write")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["url"]
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    return process, (host, int(port))


def memory_of(pid: int) -> int:
    """Resident bytes of a process and its children."""
    total = 0
    children = Path(f"/proc/{pid}/task").glob("*/children")
    pids = [str(pid)]
    for file in children:
        try:
            pids += file.read_text().split()
        except OSError:  # the thread has ended
            continue
    for each in pids:
        try:
            total += int(Path(f"/proc/{each}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:  # the process has ended
            continue
    return total


def encoded(image: Image.Image, kind: str, **settings: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


def noise(height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def many_scans(jpeg: bytes, scans: int) -> bytes:
    start, end = jpeg.rindex(b"\xff\xda"), jpeg.rindex(b"\xff\xd9")
    return jpeg[:start] + scans * jpeg[start:end] + jpeg[end:]


def as_mpo(jpeg: bytes) -> bytes:
    """Add the segment that makes Pillow call a JPEG an MPO: an index of two pictures."""
    directory = struct.pack("<H", 3) + struct.pack("<HHI4s", 0xB000, 7, 4, b"0100")
    directory += struct.pack("<HHII", 0xB001, 4, 1, 2) + struct.pack("<HHII", 0xB002, 7, 32, 50) + bytes(4)
    pictures = struct.pack("<IIIHH", 0x030000, len(jpeg), 0, 0, 0) + struct.pack("<IIIHH", 0, len(jpeg), 0, 0, 0)
    body = b"MPF\0II*\0" + struct.pack("<I", 8) + directory + pictures
    return jpeg[:2] + b"\xff\xe2" + struct.pack(">H", len(body) + 2) + body + jpeg[2:]


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_header(width: int, height: int) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))


def header_of_png(width: int, height: int) -> bytes:
    """A PNG that announces ``width`` x ``height`` pixels and has two."""
    data = chunk(b"IDAT", zlib.compress(b"\0\0")) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + png_header(width, height) + data


if __name__ == "__main__":
    sys.exit(main())
