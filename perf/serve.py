"""The server under load, beside the bare model on the same pictures; with --fuzz, malformed requests by the thousand.

    python perf/serve.py --json serve.json          p50, p95 and requests per second at 1, 8 and 32 clients
    python perf/serve.py --fuzz 1000                fails if a single one is answered by 5xx

Server and clients share the machine, as do the bare model's rounds before and after them.
"""

import io
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx
import measuring
import numpy as np
import serve_fuzz
import torch
from PIL import Image

from lookalike import index
from lookalike.inference.model import TrainedModel, load
from lookalike.models import Embedder, create_backbone, save_model

CLIENTS = (1, 8, 32)
HOW = (
    "Each request is POST /search with a JPEG: upload, decoding, the model, the 12 nearest. The bare model is "
    "TrainedModel.embed of the same JPEGs, one by one, and in batches with the decoding of the next meanwhile, in the "
    "process of the clients. Ratios are of pictures per second, within a round, to the mean of one by one before and "
    "after the server's turn; the median of all rounds is given. One thread for torch on either side."
)


class Setting(NamedTuple):
    backbone: str
    dim: int
    side: tuple[int, int]  # of the pictures
    collection: int
    requests: int  # of each round and number of clients


USUAL = Setting("tf_efficientnet_lite0", 128, (500, 375), 1000, 96)
QUICK = Setting("resnet8-half", 8, (40, 30), 20, 8)


class Outcome(NamedTuple):
    per_second: float
    milliseconds: list[float]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = measuring.parser(__doc__, repeats=3, of_what="rounds")
    parser.add_argument("--fuzz", type=int, metavar="N", help="send N malformed requests instead of measuring")
    parser.add_argument("--first", type=int, default=0, help="seed of the first malformed request")
    options = measuring.parse(parser, arguments)
    machine = measuring.describe_machine(options.quick)
    torch.set_num_threads(1)
    setting = QUICK if options.quick or options.fuzz else USUAL
    with TemporaryDirectory() as folder:
        home, model, pictures = _prepare(Path(folder), setting)
        with (_in_thread if options.quick else _in_process)(home) as address:
            if options.fuzz:
                return _fuzz(address, range(options.first, options.first + options.fuzz))
            rounds = [_round(model, pictures, address, setting) for _ in range(options.repeats)]
    report = _summary(rounds)
    _print(report)
    measuring.write_report(options, machine, HOW, [{"setting": setting._asdict(), **report}])
    return 0


def _prepare(folder: Path, setting: Setting) -> tuple[Path, TrainedModel, list[bytes]]:
    torch.manual_seed(0)
    embedder = Embedder(create_backbone(setting.backbone), dim=setting.dim, pooling_settings={"num_prototypes": 16})
    save_model(embedder, folder / "run")
    model = load(folder / "run", "cpu")
    chance = np.random.default_rng(0)
    pictures = []
    for _ in range(32):
        rough = Image.fromarray(chance.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        file = io.BytesIO()
        rough.resize(setting.side, Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        pictures.append(file.getvalue())
    vectors = chance.normal(size=(setting.collection, setting.dim)).astype(np.float32)
    with index.create(folder / "some.idx", run=folder / "run") as idx:
        items = [index.Item(f"item{i}", f"/nowhere/{i}.jpg", f"label {i % 20}") for i in range(setting.collection)]
        idx.add(items, vectors)
    return folder / "some.idx", model, pictures


@contextmanager
def _in_process(home: Path) -> Iterator[tuple[str, int]]:
    words = [sys.executable, "-m", "lookalike", "serve", str(home), "--port", "0", "--json", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment)
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        yield "127.0.0.1", int(url.rstrip("/").rpartition(":")[2])
        if process.poll() is not None:
            raise RuntimeError(f"the server has ended with {process.returncode}")
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _in_thread(home: Path) -> Iterator[tuple[str, int]]:
    import uvicorn

    from lookalike.server import create_app

    with index.open(home) as idx:
        door = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(create_app(idx, idx.model("cpu")), http="h11", log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
        thread.start()
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            yield "127.0.0.1", door.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def _round(
    model: TrainedModel, pictures: list[bytes], address: tuple[str, int], setting: Setting
) -> dict[str, Outcome]:
    found = {"before": _bare(model, pictures, setting.requests)}
    for clients in CLIENTS:
        found[f"{clients} clients"] = _load(address, pictures, clients, max(setting.requests, 2 * clients))
    found["after"] = _bare(model, pictures, setting.requests)
    found["in batches"] = _batches(model, pictures, setting.requests)
    return found


def _bare(model: TrainedModel, pictures: list[bytes], count: int) -> Outcome:
    return _timed(lambda i: model.embed(Image.open(io.BytesIO(pictures[i % len(pictures)]))), count, 1)


def _batches(model: TrainedModel, pictures: list[bytes], count: int) -> Outcome:
    started = time.perf_counter()
    model.embed([Image.open(io.BytesIO(pictures[i % len(pictures)])) for i in range(count)], batch_size=16)
    return Outcome(count / (time.perf_counter() - started), [])


def _load(address: tuple[str, int], pictures: list[bytes], clients: int, count: int) -> Outcome:
    url = f"http://{address[0]}:{address[1]}"
    with httpx.Client(base_url=url, verify=False, timeout=120, limits=httpx.Limits(max_connections=clients)) as client:

        def ask(i: int) -> None:
            answer = client.post("/search", files={"picture": pictures[i % len(pictures)]})
            answer.raise_for_status()
            assert len(answer.json()["hits"]) == 12

        _timed(ask, 2 * clients, clients)  # connections, and what is built on first use
        return _timed(ask, count, clients)


def _timed(work: Callable[[int], Any], count: int, workers: int) -> Outcome:
    def one(i: int) -> float:
        started = time.perf_counter()
        work(i)
        return 1000 * (time.perf_counter() - started)

    started = time.perf_counter()
    if workers == 1:
        times = [one(i) for i in range(count)]
    else:
        with ThreadPoolExecutor(workers) as threads:
            times = list(threads.map(one, range(count)))
    return Outcome(count / (time.perf_counter() - started), times)


def _summary(rounds: list[dict[str, Outcome]]) -> dict[str, Any]:
    def row(name: str) -> dict[str, float | None]:
        times = [value for each in rounds for value in each[name].milliseconds]
        ratios = [
            each[name].per_second / statistics.mean((each["before"].per_second, each["after"].per_second))
            for each in rounds
        ]
        return {
            "requests_per_second": statistics.median(each[name].per_second for each in rounds),
            "p50_ms": float(np.percentile(times, 50)) if times else None,
            "p95_ms": float(np.percentile(times, 95)) if times else None,
            "ratio_to_bare": statistics.median(ratios),
        }

    names = {"bare, one by one": "before", "bare, in batches of 16": "in batches"}
    names |= {f"server, {n} client{'s' * (n > 1)}": f"{n} clients" for n in CLIENTS}
    return {"rows": {title: row(name) for title, name in names.items()}}


def _print(report: dict[str, Any]) -> None:
    print(f"{'':<24}{'per second':>12}{'p50 ms':>10}{'p95 ms':>10}{'x bare':>9}")
    for title, row in report["rows"].items():
        times = "".join(f"{'':>10}" if row[key] is None else f"{row[key]:>10.0f}" for key in ("p50_ms", "p95_ms"))
        print(f"{title:<24}{row['requests_per_second']:>12.1f}{times}{row['ratio_to_bare']:>9.2f}")


def _fuzz(address: tuple[str, int], seeds: range) -> int:
    """Statuses by kind of request; 0 is a connection closed without an answer, which is what some of them ask for."""
    found: dict[str, Counter[int]] = {}
    wrong = []
    for seed in seeds:
        case = serve_fuzz.case(seed)
        status = serve_fuzz.send(address, case)
        found.setdefault(case.kind, Counter())[status] += 1
        if status >= 500 or status == -1:
            wrong.append(seed)
    for kind, statuses in sorted(found.items()):
        print(f"{kind:<10}", "  ".join(f"{status}: {count}" for status, count in sorted(statuses.items())))
    alive = httpx.get(f"http://{address[0]}:{address[1]}/healthz", verify=False, timeout=60).status_code
    print(f"{len(seeds):,} malformed requests, {len(wrong)} answered by 5xx or not at all; /healthz says {alive}")
    if wrong:
        print(f"seeds: {wrong}")
    return 1 if wrong or alive != 200 else 0


if __name__ == "__main__":
    sys.exit(main())
