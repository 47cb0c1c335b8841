"""How long does ``lookalike improve`` take? Copies an index, marks it by the folders of its pictures, and improves it.

    python perf/improve.py IDX [--marks 200]

Prints seconds of the clock and of the processor, and the report. Pictures must lie in class folders.
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


def mark(path: Path, count: int) -> None:
    """Mark the nearest pictures of random queries by their folders."""
    with index.open(path) as idx, Marks(path) as marks:
        ids = np.array([item.id for item in idx.items()])
        for query in np.random.default_rng(0).permutation(ids)[: count // RESULTS].tolist():
            hits = idx.search(idx.vectors([query]), RESULTS + 1)[0]
            others = [hit.item.id for hit in hits if hit.item.id != query][:RESULTS]
            first, *results = marked_pictures(idx, [query, *others])
            for result in results:
                if result.content != first.content:
                    is_same = Path(first.path).parent == Path(result.path).parent
                    marks.add(first, result, "same" if is_same else "different")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("index", type=Path)
    parser.add_argument("--marks", type=int, default=200)
    options = parser.parse_args()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "copy.idx"
        shutil.copytree(options.index, path)
        mark(path, options.marks)
        wall, processor = time.perf_counter(), time.process_time()
        report = improve(path)
        seconds = {"seconds": time.perf_counter() - wall, "processor": time.process_time() - processor}
    print(json.dumps({**{name: round(value, 1) for name, value in seconds.items()}, "report": report.to_dict()}))


if __name__ == "__main__":
    main()
