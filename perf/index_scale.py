"""How large an index can get: time, memory, recall and latency of every kind over the number of vectors.

    python perf/index_scale.py --sizes 100000,1000000 --folder /tmp/scale --json scale.json [--plot scale.png]

Everything is measured through ``lookalike.index``, with checksums, SQLite and exact rescoring, one thread, a process
of its own for each step. Vectors are drawn (``clustered_vectors.py``), not of pictures. Results are written after every
step; the same command continues. ``--milvus http://127.0.0.1:19530 --milvus-pid PID`` measures a server, too.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from clustered_vectors import CHUNK, DIM, Array, Clusters

from lookalike import index
from lookalike._util.files import replacing
from lookalike.index import database, milvus_index
from lookalike.index.base import Index
from lookalike.index.faiss_index import FaissIndex
from lookalike.index.storage import About

KINDS = ("flat", "hnsw", "ivf", "ivf-pq")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
QUERIES = 200
K = 10
REPEATS = 20  # of a lookup
FILTERS = {"label": "label='group 7'", "metadata": "shelf=7"}  # each holds for about 1 %
Report = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> None:
    options = _options(argv)
    if options.step:
        print(json.dumps(STEPS[options.step](options)))
        return
    report: Report = {}
    if options.json.exists():
        report = json.loads(options.json.read_text())
    for size in options.sizes:
        _run(options, report, size, "data", "")
        if not options.only_milvus:
            _run(options, report, size, "lookups", "")
        for kind in options.kinds if not options.only_milvus else ():
            _run(options, report, size, "build", kind)
            _run(options, report, size, "use", kind)
            shutil.rmtree(options.folder / f"{size}-{kind}", ignore_errors=True)
        if options.milvus:
            for kind in options.milvus_kinds:
                _run(options, report, size, "milvus", kind)
        if not options.keep:
            shutil.rmtree(options.folder / str(size), ignore_errors=True)
    if options.plot:
        from index_scale_plot import plot

        plot(report, options.plot)


def _run(options: argparse.Namespace, report: Report, size: int, step: str, kind: str) -> None:
    """Run one step in a process of its own, unless the report has it."""
    name = f"{step} {kind}".strip()
    results = report.setdefault(str(size), {})
    if name in results or (step != "data" and "error" in results.get("data", {})):
        return
    if step == "use" and "error" in results[f"build {kind}"]:
        return
    command = [sys.executable, __file__, "--step", step, "--sizes", str(size), "--kinds", kind or "flat"]
    command += ["--folder", str(options.folder), "--json", str(options.json)]
    if options.milvus:
        command += ["--milvus", options.milvus]
    if options.milvus_pid:
        command += ["--milvus-pid", str(options.milvus_pid)]
    environment = {**os.environ, **dict.fromkeys(THREADS, "1")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        results[name] = {"error": done.stderr.strip().splitlines()[-1:]}
        print(done.stderr, file=sys.stderr)
    else:
        results[name] = json.loads(done.stdout.splitlines()[-1])
    results[name]["load_average"] = os.getloadavg()[0]
    print(f"{size:,} {name}: {json.dumps(results[name])}", flush=True)
    unfinished = options.json.with_suffix(".part")
    unfinished.write_text(json.dumps(report, indent=1) + "\n")
    unfinished.replace(options.json)


# ---- steps


def make_data(options: argparse.Namespace) -> Report:
    """Add all vectors to an index without building a structure; find the exact neighbours of the queries.

    After a kill it continues behind the last chunk.
    """
    (size,) = options.sizes
    folder = options.folder / str(size)
    progress = folder / "progress.npz"
    clusters = Clusters(size)
    queries = clusters.queries(QUERIES)
    best, best_ids = np.full((QUERIES, K), -1, np.float32), np.zeros((QUERIES, K), "U32")
    first, wall, cpu = 0, 0.0, 0.0
    if progress.exists():
        saved = np.load(progress)
        best, best_ids, first = saved["best"], saved["ids"], int(saved["first"])
        wall, cpu = saved["seconds"].tolist()
    else:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        about = About("cosine", DIM, "0" * 32, "drawn", "faiss", "flat")
        database.Database.make(folder / database.FILE)
        about.write(folder)
    with index.open(folder) as idx:
        for items, vectors in clusters.chunks(first, size):
            clock = Clock()
            idx.add(items, vectors)  # a chunk that was added before is replaced
            wall, cpu = wall + clock.wall, cpu + clock.cpu
            scores = queries @ vectors.T
            nearest = np.argpartition(-scores, min(K, len(items)) - 1, axis=1)[:, :K]
            scores = np.concatenate([best, np.take_along_axis(scores, nearest, 1)], axis=1)
            ids = np.concatenate([best_ids, np.array([item.id for item in items])[nearest]], axis=1)
            order = np.argpartition(-scores, K - 1, axis=1)[:, :K]
            best, best_ids = np.take_along_axis(scores, order, 1), np.take_along_axis(ids, order, 1)
            first += len(items)
            with replacing(progress) as unfinished, unfinished.open("wb") as file:
                np.savez(file, best=best, ids=best_ids, first=first, seconds=np.array([wall, cpu]))
    np.save(folder / "truth.npy", best_ids)
    return {
        "seconds": wall,
        "cpu": cpu,
        "rows_per_cpu_second": size / cpu,
        "bytes": _bytes(folder / database.FILE),
        "mean_cosine_of_10": float(best.mean()),
    }


def measure_lookups(options: argparse.Namespace) -> Report:
    """Lookups and filters of the SQLite file, without any structure."""
    (size,) = options.sizes
    folder = options.folder / str(size)
    rng = np.random.default_rng(3)
    clusters = Clusters(size)
    chunk_start = int(rng.integers(0, max(1, size // CHUNK))) * CHUNK
    items, _ = next(clusters.chunks(chunk_start, min(size, chunk_start + CHUNK)))
    ids = [items[i].id for i in rng.choice(len(items), 100)]
    with index.open(folder) as idx:
        return {
            "open": _median(lambda: index.open(folder).close(), 3),
            "get 1": _median(lambda: idx.get(ids[:1])),
            "get 100": _median(lambda: idx.get(ids)),
            "vectors 100": _median(lambda: idx.vectors(ids)),
            "page of 50": _median(lambda: idx.items(after=ids[0], limit=50)),
            "page of 50, label": _median(lambda: idx.items(FILTERS["label"], after=ids[0], limit=50), 3),
            "page of 50, metadata": _median(lambda: idx.items(FILTERS["metadata"], after=ids[0], limit=50), 3),
            "count": _median(idx.count, 3),
            "count, label": _median(lambda: idx.count(FILTERS["label"]), 3),
            "count, metadata": _median(lambda: idx.count(FILTERS["metadata"]), 3),
            "labels": _median(idx.labels, 3),
        }


def build(options: argparse.Namespace) -> Report:
    """Build the structure of a kind from the items, and save it."""
    (size,), (kind,) = options.sizes, options.kinds
    folder = options.folder / f"{size}-{kind}"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(options.folder / str(size), folder)
    with index.open(folder) as idx:
        idx.set_kind(kind)
        clock = Clock()
        info = idx.info()
        report = {"seconds": clock.wall, "cpu": clock.cpu, "peak": _memory("VmHWM"), "resident": _memory("VmRSS")}
        clock = Clock()
        idx.save()
        report |= {"save": clock.wall, "recall@10": info["recall@10"], "kind": info["kind"]}
        if isinstance(idx, FaissIndex) and idx._structure is not None:
            report["effort"] = idx._structure.effort
    report["bytes"] = sum(_bytes(file) for file in folder.glob("index.faiss*"))
    return report


def use(options: argparse.Namespace) -> Report:
    """Open what was built: restart, searches, filters, one per cent more items, deletions."""
    (size,), (kind,) = options.sizes, options.kinds
    folder = options.folder / f"{size}-{kind}"
    clusters = Clusters(size)
    queries = clusters.queries(QUERIES)
    clock = Clock()
    with index.open(folder) as idx:
        idx.search(queries[:1], K)
        report: Report = {"restart": clock.wall, "restart_cpu": clock.cpu, "resident": _memory("VmRSS")}
        report["search"] = _searches(idx, queries)
        report["recall@10"] = _recall(idx, queries, np.load(folder / "truth.npy"))
        for name, where in FILTERS.items():
            clock = Clock()
            idx.search(queries[:1], K, where)
            report[f"first search, {name}"] = clock.wall
            report[f"search, {name}"] = _searches(idx, queries[:REPEATS], where)
        more = size // 100
        chunks = list(clusters.chunks(size, size + more))
        clock = Clock()
        for items, vectors in chunks:
            idx.add(items, vectors)
        report["add 1 %"] = {"seconds": clock.wall, "cpu": clock.cpu, "rows": more}
        clock = Clock()
        idx.search(queries[:1], K)
        report["first search after it"] = {"seconds": clock.wall, "cpu": clock.cpu}
        clock = Clock()
        idx.add(chunks[0][0][:1], chunks[0][1][:1])
        idx.search(queries[:1], K)
        report["add 1 and search"] = clock.wall
        idx.delete([item.id for item in chunks[0][0][:100]])
        report["search after deletions"] = _searches(idx, queries[:REPEATS])
        report["peak"] = _memory("VmHWM")
    return report


def measure_milvus(options: argparse.Namespace) -> Report:
    """The same in a collection of a Milvus server."""
    (size,), (kind,) = options.sizes, options.kinds
    folder = options.folder / f"{size}-milvus-{kind}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    about = About(
        "cosine", DIM, "0" * 32, "drawn", "milvus", kind, options.milvus, f"scale_{size}_{kind}".replace("-", "_")
    )
    milvus_index.drop_collection(options.milvus, about.collection)
    milvus_index.make_collection(options.milvus, about)
    about.write(folder)
    clusters = Clusters(size)
    queries = clusters.queries(QUERIES)
    report: Report = {}
    server = options.milvus_pid
    try:
        with index.open(folder, options.milvus) as idx:
            clock = Clock(server)
            for items, vectors in clusters.chunks(0, size):
                idx.add(items, vectors)
            report["add"] = clock.costs()
            clock = Clock(server)
            idx.save()
            report |= {"save": clock.costs(), "reported": idx.about.measured}
        clock = Clock(server)
        with index.open(folder, options.milvus) as idx:
            idx.search(queries[:1], K)
            report["open"] = clock.costs()
            report["search"] = _searches(idx, queries, server=server)
            report["recall@10"] = _recall(idx, queries, np.load(options.folder / str(size) / "truth.npy"))
            for name, where in FILTERS.items():
                report[f"search, {name}"] = _searches(idx, queries[:REPEATS], where, server)
            more = size // 100
            clock = Clock(server)
            for items, vectors in clusters.chunks(size, size + more):
                idx.add(items, vectors)
            report["add 1 %"] = {**clock.costs(), "rows": more}
            if server:
                report["resident"] = _memory("VmRSS", server)
    finally:
        milvus_index.drop_collection(options.milvus, about.collection)
        shutil.rmtree(folder, ignore_errors=True)
    return report


STEPS: dict[str, Callable[[argparse.Namespace], Report]] = {
    "data": make_data,
    "lookups": measure_lookups,
    "build": build,
    "use": use,
    "milvus": measure_milvus,
}

# ---- measuring


class Clock:
    """Seconds since it was made.

    Args:
        server: Id of another process whose processor time is measured, too.
    """

    def __init__(self, server: int | None = None) -> None:
        self._wall, self._cpu, self._server = time.perf_counter(), time.process_time(), server
        self._server_cpu = _cpu_of(server) if server else 0.0

    @property
    def wall(self) -> float:
        return time.perf_counter() - self._wall

    @property
    def cpu(self) -> float:
        return time.process_time() - self._cpu

    def costs(self) -> dict[str, float]:
        """Seconds of waiting, of this process and of the server."""
        costs = {"seconds": self.wall, "cpu": self.cpu}
        if self._server:
            costs["server_cpu"] = _cpu_of(self._server) - self._server_cpu
        return costs


def _cpu_of(process: int) -> float:
    """Processor seconds of another process, of all its threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # user and system time


def _searches(idx: Index, queries: Array, where: str | None = None, server: int | None = None) -> dict[str, float]:
    """Milliseconds of single queries."""
    walls, clock = [], Clock(server)
    for query in queries:
        each = Clock()
        idx.search(query[None], K, where)
        walls.append(1000 * each.wall)
    times = {"p50": float(np.percentile(walls, 50)), "p95": float(np.percentile(walls, 95))}
    for name, seconds in clock.costs().items():
        if name != "seconds":
            times[name] = 1000 * seconds / len(queries)
    return times


def _recall(idx: Index, queries: Array, truth: Any) -> float:
    shares = []
    for query, expected in zip(queries, truth.tolist(), strict=True):
        hits = {hit.item.id for hit in idx.search(query[None], K)[0]}
        shares.append(len(hits & set(expected)) / K)
    return float(np.mean(shares))


def _median(work: Callable[[], object], repeats: int = REPEATS) -> float:
    walls = []
    for _ in range(repeats):
        clock = Clock()
        work()
        walls.append(1000 * clock.wall)
    return float(np.median(walls))


def _bytes(file: Path) -> int:
    return file.stat().st_size


def _memory(field: str, process: int | str = "self") -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(field))


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=_sizes, default=[100_000, 1_000_000], help="numbers of vectors")
    parser.add_argument("--kinds", type=lambda text: text.split(","), default=list(KINDS), help="kinds of index")
    parser.add_argument("--folder", type=Path, required=True, help="where the indexes are made, 1.5 kB per vector")
    parser.add_argument("--json", type=Path, required=True, help="the results; steps that it has are not repeated")
    parser.add_argument("--milvus", metavar="URI", help="also measure this Milvus server")
    parser.add_argument("--milvus-pid", type=int, help="its process, to measure its processor time and memory")
    parser.add_argument("--only-milvus", action="store_true", help="measure nothing else")
    parser.add_argument("--milvus-kinds", type=lambda text: text.split(","), default=["hnsw"])
    parser.add_argument("--plot", type=Path, metavar="PNG", help="plot all results")
    parser.add_argument("--keep", action="store_true", help="keep the items of each size, for a later run")
    parser.add_argument("--step", choices=["data", "lookups", "build", "use", "milvus"], help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def _sizes(text: str) -> list[int]:
    return [int(float(size)) for size in text.split(",")]


if __name__ == "__main__":
    main()
