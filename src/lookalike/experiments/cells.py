"""A cell: one model of a table, trained and tested. What it is, where it lies, and how it is run.

    DIR/cells/<name>-<key>/
        cell.json        what it is
        claim-*          who is at it
        run/             the folder of the run
        log.txt          what the run said
        vectors.npy      of the test pictures, where models are to be joined
        result.json      when it is done
        failed.json      when it cannot be done

The key covers the settings, the code and the data, so that a result is used where it holds and nowhere else.
"""

import json
import re
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import lookalike
from lookalike._util.files import replacing, write_text
from lookalike._util.hashing import digest
from lookalike._util.signals import Stopped
from lookalike.data.pictures import Pictures
from lookalike.experiments.choices import Choice
from lookalike.inference.model import TrainedModel
from lookalike.training.evaluation import measure
from lookalike.training.features import FeatureCache, default_folder
from lookalike.training.run import train
from lookalike.training.run_folder import RunFolder
from lookalike.training.settings import FREE_ON_RESUME, Settings

# Raise this when the same settings would give other numbers: results of another version are computed again.
RESULTS_VERSION = 2
# What says where and how a run is done, and not what comes out; the steps and the patience do belong to the key.
NOT_IN_KEY = (FREE_ON_RESUME - {"steps", "patience"}) | {"data", "log_every"}
MEGABYTE = 1e6


@dataclass(frozen=True)
class Cell:
    protocol: str
    data: str  # as it was named
    loss: Choice
    pooling: Choice
    methods: tuple[Choice, ...]
    fold: int  # from 0
    repeat: int
    settings: Settings
    fingerprint: str  # of the data

    @property
    def title(self) -> str:
        """The row of a table: everything but fold and repeat."""
        return " + ".join([str(self.loss), str(self.pooling), *map(str, self.methods)])

    @property
    def place(self) -> str:
        return f"fold {self.fold + 1}, repeat {self.repeat + 1}"

    @cached_property
    def key(self) -> str:
        kept = {entry.name: getattr(self.settings, entry.name) for entry in fields(Settings)}
        kept = {name: value for name, value in kept.items() if name not in NOT_IN_KEY}
        return digest(json.dumps(kept, sort_keys=True, default=str), str(RESULTS_VERSION), self.fingerprint)[:16]

    def folder(self, out: Path) -> Path:
        words = f"{Path(self.data).name or self.data} {self.title} f{self.fold + 1} r{self.repeat + 1}"
        return out / "cells" / f"{re.sub('[^a-z0-9.=+]+', '-', words.lower()).strip('-')[:90]}-{self.key}"

    def about(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "protocol": self.protocol,
            "data": self.data,
            "loss": asdict(self.loss),
            "pooling": asdict(self.pooling),
            "methods": [asdict(method) for method in self.methods],
            "fold": self.fold,
            "repeat": self.repeat,
            "title": self.title,
            "key": self.key,
            "code": str(RESULTS_VERSION),
            "fingerprint": self.fingerprint,
        }


def result_of(folder: Path) -> dict[str, Any] | None:
    file = folder / "result.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def failure_of(folder: Path) -> str | None:
    file = folder / "failed.json"
    return str(json.loads(file.read_text(encoding="utf-8"))["error"]) if file.exists() else None


def test_labels_file(out: Path, fingerprint: str) -> Path:
    """Where labels and roles of the test pictures lie, in the order of every vectors.npy with this fingerprint."""
    return out / "tests" / f"{digest(fingerprint)}.npz"


def run_cell(cell: Cell, out: Path, pictures: Pictures, *, keep_vectors: bool) -> dict[str, Any]:
    """Train (or go on), test, and leave the result. Raises what training raises; a failure is left there, too."""
    folder, test = cell.folder(out), pictures.split("test")
    write_text(folder / "cell.json", json.dumps(cell.about(), indent=2) + "\n")
    (folder / "failed.json").unlink(missing_ok=True)
    with (folder / "log.txt").open("a", buffering=1, encoding="utf-8") as log, redirect_stderr(log):
        try:
            with _peak_memory() as memory:
                figures = train(replace(cell.settings, out=folder / "run", resume=True), pictures)
                started = time.monotonic()
                model = lookalike.load(folder / "run")
                vectors = test_vectors(model, RunFolder(folder / "run").read_settings(), test)
                tested = measure(vectors, test, distance=model.distance)
        except Stopped:
            raise
        except Exception as error:
            traceback.print_exc(file=log)
            problem = str(error).splitlines()[0] if str(error) else type(error).__name__
            write_text(folder / "failed.json", json.dumps({"error": problem}) + "\n")
            raise
    if keep_vectors:
        with replacing(folder / "vectors.npy") as unfinished, unfinished.open("wb") as file:
            np.save(file, vectors)
        _write_test_labels(test_labels_file(out, cell.fingerprint), test)
    head = model.embedder.head
    result = {
        **cell.about(),
        "test": tested,
        "held_out": figures["best"],
        "steps": figures["steps"],
        "best_step": figures["best_step"],
        "seconds": figures["seconds"],
        "seconds_testing": time.monotonic() - started,
        "seconds_per_step": _seconds_per_step(RunFolder(folder / "run")),
        "pooling_parameters": sum(parameter.numel() for parameter in head.pooling.parameters()),
        "head_parameters": sum(parameter.numel() for parameter in head.parameters()),
        "dim": head.dim,
        "megabytes": memory.get("megabytes"),
        "torch": torch.__version__,
        "lookalike": lookalike.__version__,
        "device": "cuda" if torch.cuda.is_available() else "cpu",
        "threads": torch.get_num_threads(),
    }
    write_text(folder / "result.json", json.dumps(result, indent=2) + "\n")
    return result


def test_vectors(model: TrainedModel, settings: Settings, test: Pictures) -> NDArray[np.float32]:
    """Of the test pictures; by way of the cache if the backbone was frozen, since many models share their features."""
    if not settings.freeze_backbone:
        return model.embed_table(test, workers=settings.workers)
    backbone, head = model.embedder.backbone, model.embedder.head
    cache = FeatureCache(settings.cache or default_folder(), backbone, model.spec)
    cache.fill(cache.missing([(test, 1)]), workers=settings.workers, tick=lambda _: None)
    cache.store.refresh()
    places = cache.places(test)
    with torch.inference_mode():
        pieces = [
            head(cache.read(some).to(model.device)).float().cpu()
            for some in np.array_split(places, -(-len(places) // 256))
        ]
    return torch.cat(pieces).numpy()


def _write_test_labels(path: Path, test: Pictures) -> None:
    if path.exists():
        return
    roles = test.roles if test.roles is not None else np.full(len(test), "")
    with replacing(path) as unfinished, unfinished.open("wb") as file:
        np.savez(file, labels=test.labels, roles=roles)


def _seconds_per_step(run: RunFolder) -> float | None:
    """By the median of the rows of metrics.csv, so that evaluations do not count; with the batches that there were."""
    settings = run.read_settings()
    speeds = [float(row["pictures/s"]) for row in run.read_metrics() if row.get("pictures/s")]
    return settings.batch_size * settings.accumulate / median(speeds) if speeds else None


@contextmanager
def _peak_memory() -> Iterator[dict[str, float]]:
    """The most that was held at a time in here: on the GPU, or of this process's memory beyond what it had."""
    found: dict[str, float] = {}
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        yield found
        found["megabytes"] = torch.cuda.max_memory_allocated() / MEGABYTE
        return
    status = Path("/proc/self/status")
    if not status.exists():
        yield found
        return
    before = _kilobytes(status, "VmRSS")
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    except OSError:
        yield found
        return
    yield found
    found["megabytes"] = max(0, _kilobytes(status, "VmHWM") - before) * 1024 / MEGABYTE


def _kilobytes(status: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(name))
