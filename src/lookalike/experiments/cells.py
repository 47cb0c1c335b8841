"""Cells: a cell is one model of the experiment grid, trained and tested.

    DIR/cells/<name>-<key>/
        cell.json        what it is
        run/             the run's folder
        log.txt          output of the run
        vectors.npy      of the test pictures, if the protocol concatenates models
        result.json      once it is done
        failed.json      if it failed

The key covers RESULTS_VERSION, the settings and the data, so that a result is reused only where it holds.
"""

import json
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import lookalike
from lookalike._util.files import cache_folder, replacing, write_text
from lookalike._util.folder_lock import FolderInUse
from lookalike._util.hashing import digest
from lookalike._util.signals import Stopped
from lookalike._util.untrusted import read_json
from lookalike.data.datasets import recall_ranks
from lookalike.data.pictures import Pictures
from lookalike.experiments.results import NOT_IN_KEY, RESULTS_VERSION, GridPosition, tested_part
from lookalike.experiments.run_log import RunLog
from lookalike.inference.feature_cache import FeatureCache
from lookalike.inference.model import TrainedModel, embed_batches
from lookalike.models import Embedder, create_backbone, starts_random
from lookalike.models.weight_files import first_line
from lookalike.models.weight_formats import is_tfjs
from lookalike.models.weight_origin import identify
from lookalike.objectives.libc import load_messages
from lookalike.training.checkpoint import RunFolder
from lookalike.training.evaluate import measure
from lookalike.training.run import train
from lookalike.training.settings import Settings

MEGABYTE = 1e6
HEAD_BATCH = 256  # pictures that the head embeds at once from cached features


@dataclass(frozen=True)
class Cell(GridPosition):
    """One model to train and test."""

    settings: Settings
    fingerprint: str  # of the pictures and their splits

    @property
    def title(self) -> str:
        """The row of the table: everything but fold and repeat."""
        return " + ".join(map(str, (self.loss, self.pooling, *self.methods)))

    @cached_property
    def key(self) -> str:
        """Identifies the result: a hash of RESULTS_VERSION, the settings and the data."""
        settings = {}
        for entry in fields(Settings):
            if entry.name not in NOT_IN_KEY:
                settings[entry.name] = getattr(self.settings, entry.name)
        text = json.dumps(settings, sort_keys=True, default=str)
        return digest(text, str(RESULTS_VERSION), self.fingerprint)[:16]

    def folder(self, out: Path) -> Path:
        """Where the cell is stored in the results folder ``out``."""
        data_name = Path(self.data).name or self.data
        words = f"{data_name} {self.title} f{self.fold + 1} r{self.repeat + 1}".lower()
        name = re.sub("[^a-z0-9.=+]+", "-", words).strip("-")
        return out / "cells" / f"{name[:90]}-{self.key}"

    def description(self) -> dict[str, Any]:
        """The content of cell.json; result.json begins with the same keys."""
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
            "version": RESULTS_VERSION,
            "fingerprint": self.fingerprint,
        }


def test_labels_file(out: Path, fingerprint: str) -> Path:
    """The file with labels and roles of the test pictures, in the order of every vectors.npy of this fingerprint."""
    return out / "tests" / f"{digest(fingerprint)}.npz"


def run_cell(cell: Cell, out: Path, pictures: Pictures, *, keep_vectors: bool) -> dict[str, Any]:
    """Train a cell (or resume it), test it, and write result.json.

    Returns:
        The content of result.json, as ``results.CellResult`` reads it.

    Raises:
        Exception: whatever training raises; the reason is also left in failed.json.
    """
    folder = cell.folder(out)
    test = pictures.split("test")
    write_text(folder / "cell.json", json.dumps(cell.description(), indent=2) + "\n")
    (folder / "failed.json").unlink(missing_ok=True)
    cpu_before = _cpu_seconds()
    name = f"{cell.data}: {cell.title}, {cell.run_label}"
    with (folder / "log.txt").open("a", buffering=1, encoding="utf-8") as log, RunLog(log, sys.stderr, name):
        try:
            with _peak_memory() as memory:
                trained = train(replace(cell.settings, out=folder / "run", resume=True), pictures)
                started = time.monotonic()
                device = None if cell.settings.device == "auto" else cell.settings.device
                model = lookalike.load(folder / "run", device, cell.settings.engine, view="crop")
                vectors = test_vectors(model, RunFolder(folder / "run").read_settings(), test)
                distance = model.distance
                if cell.settings.message_passing:
                    messages = load_messages(folder / "run")
                    vectors, distance = messages.refine(vectors, cell.settings.message_passing).numpy(), "cosine"
                metrics = measure(vectors, test, distance=distance, ks=recall_ranks(test.name))
                seconds_testing, cpu_seconds = time.monotonic() - started, _cpu_seconds() - cpu_before
            frozen = frozen_metrics(model, cell, out, test)
        except (Stopped, FolderInUse):  # not a fault of the cell
            raise
        except Exception as error:
            traceback.print_exc(file=log)
            write_text(folder / "failed.json", json.dumps({"error": first_line(error)}) + "\n")
            raise
    if keep_vectors:
        with replacing(folder / "vectors.npy") as unfinished, unfinished.open("wb") as file:
            np.save(file, vectors)
        _write_test_labels(test_labels_file(out, cell.fingerprint), test)
    head = model.embedder.head
    run = RunFolder(folder / "run")
    result = {
        **cell.description(),
        "test": metrics,
        "held_out": trained["best"],
        "steps": trained["steps"],
        "best_step": trained["best_step"],
        "seconds": trained["seconds"],
        "seconds_testing": seconds_testing,
        "seconds_per_step": _seconds_per_step(run),
        "cpu_seconds": cpu_seconds,
        "cpu_seconds_per_step": _cpu_seconds_per_step(run),
        "asked_batch_size": cell.settings.batch_size,
        "known_weights": _known_weights(run.read_settings().weights),
        "frozen": frozen,
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
    """Embed the test pictures.

    Models with a frozen backbone share their features, so these come from the feature cache.

    Returns:
        (N, D), in the order of ``test``.
    """
    if not settings.head_only:
        return model.embed_table(test, workers=settings.workers)
    backbone, head = model.embedder.backbone, model.embedder.head
    cache = FeatureCache(settings.cache or cache_folder(), backbone, model.spec, engine=settings.engine)
    cache.fill(cache.missing([(test, 1)]), workers=settings.workers, tick=lambda _: None)
    cache.store.refresh()
    positions = cache.rows(test)
    batches = np.array_split(positions, -(-len(positions) // HEAD_BATCH))
    vectors: Tensor = embed_batches(map(cache.read, batches), head, device=model.device, tick=lambda _: None)
    return vectors.numpy()


def frozen_metrics(model: TrainedModel, cell: Cell, out: Path, test: Pictures) -> dict[str, Any] | None:
    """Measure the backbone's averaged features on the test pictures, once for all cells that have the same.

    Args:
        model: Of the cell.
        cell: The cell.
        out: Results folder.
        test: Test pictures.

    Returns:
        "metrics", "dim" and "size"; None if the backbone starts with random weights.
    """
    settings = RunFolder(cell.folder(out) / "run").read_settings()
    if starts_random(settings.backbone, settings.weights):
        return None
    key = digest(
        tested_part(cell.fingerprint), settings.backbone, str(settings.weights), json.dumps(model.spec.to_dict())
    )
    file = out / "tests" / f"frozen-{key[:16]}.json"
    if not file.exists():
        backbone = model.embedder.backbone
        if not settings.head_only:
            backbone = create_backbone(settings.backbone, weights=settings.weights).to(model.device)
        embedder = Embedder(backbone, dim=None, pooling="average", input_spec=model.spec)
        averages = TrainedModel(embedder.to(model.device), settings.engine, source="frozen features")
        vectors = test_vectors(averages, settings, test)
        metrics = measure(vectors, test, distance=averages.distance, ks=recall_ranks(test.name))
        content = {"metrics": metrics, "dim": averages.dim, "size": model.spec.size}
        write_text(file, json.dumps(content) + "\n")
    frozen: dict[str, Any] = read_json(file)
    return frozen


def _known_weights(weights: str) -> dict[str, str] | None:
    """The known file that weights from a file are, or were converted from; for the report."""
    path = Path(weights).expanduser()
    if not path.is_file() and not is_tfjs(path):  # auto, none, timm, or a run
        return None
    known = identify(path)
    if known is None:
        return None
    return {"file": known.file, "trained_on": known.trained_on}


def _cpu_seconds() -> float:
    """CPU time of this process and of those it has ended, as data workers."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _write_test_labels(path: Path, test: Pictures) -> None:
    if path.exists():
        return
    roles = test.roles
    if roles is None:
        roles = np.full(len(test), "")
    with replacing(path) as unfinished, unfinished.open("wb") as file:
        np.savez(file, labels=test.labels, roles=roles)


def _seconds_per_step(run: RunFolder) -> float | None:
    """Seconds per step by the median speed in metrics.csv, which excludes evaluations."""
    settings = run.read_settings()
    speeds = [float(row["pictures/s"]) for row in run.read_metrics() if row.get("pictures/s")]
    if not speeds:
        return None
    return settings.batch_size * settings.accumulate / median(speeds)


def _cpu_seconds_per_step(run: RunFolder) -> float | None:
    """CPU seconds of a step: the median in metrics.csv, which excludes evaluations and processes that read pictures."""
    times = [float(row["CPU ms/step"]) for row in run.read_metrics() if row.get("CPU ms/step")]
    return median(times) / 1000 if times else None


@contextmanager
def _peak_memory() -> Iterator[dict[str, float]]:
    """Measures the peak of GPU memory, or of this process's memory beyond what it had before."""
    memory: dict[str, float] = {}
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
        yield memory
        memory["megabytes"] = torch.cuda.max_memory_allocated() / MEGABYTE
        return
    status = Path("/proc/self/status")
    if not status.exists():
        yield memory
        return
    before = _kilobytes(status, "VmRSS")
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    except OSError:
        yield memory
        return
    yield memory
    memory["megabytes"] = max(0, _kilobytes(status, "VmHWM") - before) * 1024 / MEGABYTE


def _kilobytes(status: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(name))
