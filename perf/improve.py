"""How long does ``lookalike improve`` take, and is its model installed? Marks copies of an index and improves them.

    python perf/improve.py IDX [--marks 200] [--seeds 3] [--unlabelled]

A simulated user marks the nearest pictures of random queries by their class folders. For each seed, prints seconds of
the clock and of the processor, and the report.
"""

import argparse
import json
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from lookalike import index
from lookalike.improve import improve
from lookalike.index.contents import marked_pictures
from lookalike.index.marks import Marks

RESULTS = 10  # marked for each query


def mark(path: Path, count: int, seed: int = 0) -> None:
    """Mark the nearest pictures of random queries by their folders."""
    with index.open(path) as idx, Marks(path) as marks:
        ids = np.array([item.id for item in idx.items()])
        for query in np.random.default_rng(seed).permutation(ids)[: count // RESULTS].tolist():
            hits = idx.search(idx.vectors([query]), RESULTS + 1)[0]
            others = [hit.item.id for hit in hits if hit.item.id != query][:RESULTS]
            first, *results = marked_pictures(idx, [query, *others])
            for result in results:
                if result.content != first.content:
                    is_same = Path(first.path).parent == Path(result.path).parent
                    marks.add(first, result, "same" if is_same else "different")


def remove_labels(path: Path) -> None:
    """Remove all labels of an index."""
    with index.open(path) as idx:
        items = [item._replace(label="") for item in idx.items()]
        ids = [item.id for item in items]
        stamps = idx.stamps(ids)
        idx.add(items, idx.vectors(ids), [stamps[item_id] for item_id in ids])


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("index", type=Path)
    parser.add_argument("--marks", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--unlabelled", action="store_true", help="remove the labels of the copy")
    options = parser.parse_args()
    for seed in range(options.seeds):
        with TemporaryDirectory() as folder:
            path = Path(folder) / "copy.idx"
            shutil.copytree(options.index, path)
            if options.unlabelled:
                remove_labels(path)
            mark(path, options.marks, seed)
            wall, processor = time.perf_counter(), time.process_time()
            report = improve(path, seed=seed)
            seconds = {"seconds": time.perf_counter() - wall, "processor": time.process_time() - processor}
        rounded = {name: round(value, 1) for name, value in seconds.items()}
        print(json.dumps({"seed": seed, **rounded, "report": report.to_dict()}), flush=True)


if __name__ == "__main__":
    main()
