"""Folders as a benchmark leaves them, with figures of our choice."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from lookalike.experiments.choices import Choice
from lookalike.experiments.results import RESULTS_VERSION

WHEN = 1_700_000_000  # results are written one second after the other


def about(
    fold: int = 0,
    repeat: int = 0,
    *,
    protocol: str = "ours",
    data: str = "glyphs",
    loss: str = "c2",
    pooling: str = "average",
    methods: tuple[str, ...] = (),
    version: int | str = RESULTS_VERSION,
    key: str | None = None,
    test_pictures: str = "t0",
) -> dict[str, Any]:
    choices = [Choice(name) for name in (loss, pooling, *methods)]
    title = " + ".join(map(str, choices))
    return {
        "protocol": protocol,
        "data": data,
        "loss": {"name": loss, "settings": {}},
        "pooling": {"name": pooling, "settings": {}},
        "methods": [{"name": name, "settings": {}} for name in methods],
        "fold": fold,
        "repeat": repeat,
        "title": title,
        "key": key or f"{data} {title} {fold} {repeat} {version}",
        "version": version,
        "fingerprint": f"test {test_pictures} train {fold} validation {fold}",
    }


def write_result(
    out: Path,
    map_at_r: float,
    fold: int = 0,
    repeat: int = 0,
    *,
    p_at_1: float = 0.5,
    settings: dict[str, Any] | None = None,
    vectors: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    roles: np.ndarray | None = None,
    more: dict[str, Any] | None = None,
    queries: int = 60,
    **what: Any,
) -> Path:
    """One finished cell; the labels of its test pictures, too, if it has vectors."""
    described = about(fold, repeat, **what)
    folder = _folder(out, described)
    figures = {"P@1": p_at_1, "P@R": 0.4, "MAP@R": map_at_r, "R@1": p_at_1, "R@2": 0.7, "left_out": 0}
    figures["queries"] = queries
    result = {
        **described,
        "test": figures,
        "held_out": figures,
        "steps": 300,
        "best_step": 100 * (repeat + 1),
        "seconds": 60.0,
        "seconds_testing": 1.0,
        "seconds_per_step": 0.05,
        "cpu_seconds": 30.0,
        "cpu_seconds_per_step": 0.04,
        "pooling_parameters": 0 if described["pooling"]["name"] == "average" else 8192,
        "head_parameters": 164_000,
        "dim": 128 if vectors is None else vectors.shape[1],
        "megabytes": None,
        "torch": "2.9",
        "lookalike": "0.1.0",
        "device": "cpu",
        "threads": 2,
        **(more or {}),
    }
    (folder / "result.json").write_text(json.dumps(result))
    count = len(list((out / "cells").iterdir()))
    os.utime(folder / "result.json", (WHEN + count, WHEN + count))
    (folder / "run").mkdir()
    asked = {"backbone": "resnet20", "steps": 300, "monitor": "MAP@R", "seed": fold + repeat, **(settings or {})}
    (folder / "run" / "settings.yaml").write_text(yaml.safe_dump(asked))
    if vectors is not None:
        from lookalike.experiments.cells import test_labels_file

        np.save(folder / "vectors.npy", vectors)
        file = test_labels_file(out, described["fingerprint"])
        file.parent.mkdir(exist_ok=True)
        assert labels is not None
        np.savez(file, labels=labels, roles=np.full(len(labels), "") if roles is None else roles)
    return folder


def write_failure(out: Path, error: str, fold: int = 0, repeat: int = 0, **what: Any) -> Path:
    described = about(fold, repeat, **what)
    folder = _folder(out, described)
    (folder / "cell.json").write_text(json.dumps(described))
    (folder / "failed.json").write_text(json.dumps({"error": error}))
    return folder


def _folder(out: Path, described: dict[str, Any]) -> Path:
    count = len(list((out / "cells").glob("*")))
    folder = out / "cells" / f"{count:03d}-{described['key'].replace(' ', '-').replace('/', '-')}"
    folder.mkdir(parents=True)
    return folder
