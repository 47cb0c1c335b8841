"""What checksums cost: opening, reading and writing with and without them, as ratios within one run.

    python perf/checksums.py [--items 20000] [--dim 512] [--repeats 5] [--json FILE]

"Without" is the same code with the checksum functions replaced by constants, so that both read and write the same
files. Each pair is measured alternately and the fastest of each are compared.
"""

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from lookalike import index
from lookalike._util.files import write_text
from lookalike.index.items import stored_item
from lookalike.inference.model import TrainedModel
from lookalike.models import Embedder, create_backbone, load_model, save_model
from lookalike.training.checkpoint import RunFolder
from lookalike.training.settings import Settings

WITHOUT = {
    "lookalike.index.database.crc32": lambda *_: None,
    "lookalike.index.database.item_checksum": lambda *_: None,
    "lookalike.index.database.good_item": lambda row: stored_item(*row[1:5]),
    "lookalike.index.database.Database._is_good": lambda *_: True,
    "lookalike.models.weight_files.state_key": lambda _: "",
    "lookalike.models.store.check_weights": lambda *_, **__: True,
    "lookalike._util.untrusted.check_content": lambda *_: None,
    "lookalike.training.checkpoint.write_checked": write_text,
    "lookalike.training.checkpoint.hash_content": lambda _: "",
    "lookalike.training.checkpoint.read_checksums": lambda _: None,
}


@contextmanager
def no_checksums() -> Iterator[None]:
    with ExitStack() as stack:
        for name, replacement in WITHOUT.items():
            stack.enter_context(mock.patch(name, replacement))
        yield


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--backbone", default="resnet50")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    report: dict[str, Any] = {"torch": torch.__version__, **vars(options), "json": None, "ways": {}}
    with tempfile.TemporaryDirectory() as folder:
        for name, work in works(Path(folder), options).items():
            seconds = measure(work, options.repeats)
            ratio = seconds["with"] / seconds["without"]
            report["ways"][name] = {**seconds, "ratio": ratio}
            print(f"{name:44} {seconds['with']:9.4f} s {seconds['without']:9.4f} s {ratio:6.2f} x", flush=True)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2))


def measure(work: Callable[[], None], repeats: int) -> dict[str, float]:
    """Fastest times in seconds, with and without checksums, measured alternately."""
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    work()  # files are in memory afterwards
    gc.disable()
    for _ in range(repeats):
        for name in seconds:
            with no_checksums() if name == "without" else ExitStack():
                gc.collect()
                start = time.perf_counter()
                work()
                seconds[name].append(time.perf_counter() - start)
    gc.enable()
    return {name: min(values) for name, values in seconds.items()}


def works(folder: Path, options: argparse.Namespace) -> dict[str, Callable[[], None]]:
    """What is measured, by name."""
    rng = np.random.default_rng(0)
    backbone = create_backbone(options.backbone, weights="none")
    embedder = Embedder(backbone, options.dim, "average", {}, "l2", backbone.spec)
    items = [index.Item(f"i{n}", f"/pictures/{n}.jpg", f"label {n % 50}", {"year": n}) for n in range(options.items)]
    vectors = rng.normal(size=(options.items, options.dim)).astype(np.float32)
    idx = index.create(folder / "idx", TrainedModel(embedder))
    idx.add(items, vectors)
    ids = [item.id for item in items]
    run = RunFolder(folder / "run")
    state = {"progress": {"step": 1}, "model": embedder.state_dict()}
    run.write_state(state)
    run.write_settings(Settings())
    save_model(embedder, folder / "run")

    def open_index() -> None:
        with index.open(folder / "idx") as opened:
            opened.search(vectors[:1], 10)

    return {
        "open an index, first search": open_index,
        "search (20 queries, k = 10)": lambda: _discard(idx.search(vectors[:20], 10)),
        "read all items": lambda: _discard(idx.items()),
        "add 500 items": lambda: _discard(idx.add(items[:500], vectors[:500])),
        "read the vectors of 5,000 items": lambda: _discard(idx.vectors(ids[-5000:])),
        "load a model": lambda: _discard(load_model(folder / "run")),
        "save a model": lambda: save_model(embedder, folder / "run"),
        "save a state": lambda: run.write_state(state),
        "read a state": lambda: _discard(run.read_state()),
        "read settings.yaml": lambda: _discard(run.read_settings()),
        "write settings.yaml": lambda: run.write_settings(Settings()),
    }


def _discard(_: object) -> None:
    """A call whose result is of no interest."""


if __name__ == "__main__":
    main()
