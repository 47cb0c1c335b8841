"""Results on disk: one ``CellResult`` for every cell folder, finished or not."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import yaml

from lookalike._util.untrusted import LARGEST_LIST, read_json, read_yaml
from lookalike.experiments.choices import Choice
from lookalike.training.settings import FREE_ON_RESUME

# Raise this when the same settings would give other numbers. Results of another version are outdated: they are
# computed again, and never averaged with current ones.
RESULTS_VERSION = 5
CONTENT_SINCE = 3  # before, a fingerprint of data did not cover the contents of pictures

# Settings that do not change the result: paths and hardware. Steps and patience do.
NOT_IN_KEY = (FREE_ON_RESUME - {"steps", "patience"}) | {"data", "log_every"}
# Settings in which the models of one row may differ.
PER_MODEL_SETTINGS = NOT_IN_KEY | {"precision", "seed"}
# Keys of cell.json and result.json that are used as they are.
DESCRIPTION = ("protocol", "data", "fold", "repeat", "title", "key", "fingerprint")

FoldRepeat = tuple[int, int]  # counted from 0


@dataclass(frozen=True)
class GridPosition:
    """What a cell of the experiment grid trains and tests; ``data`` as it was typed, fold and repeat from 0."""

    protocol: str
    data: str
    loss: Choice
    pooling: Choice
    methods: tuple[Choice, ...]
    fold: int
    repeat: int

    @property
    def run_label(self) -> str:
        """Fold and repeat as text, counted from 1."""
        return f"fold {self.fold + 1}, repeat {self.repeat + 1}"


@dataclass(frozen=True)
class CellResult(GridPosition):
    """One cell of the experiment grid as its folder describes it.

    ``status`` is "done", "failed" (then ``error`` has the reason) or "unfinished". The measured fields, from ``test``
    on, are those of result.json and have values only if the cell is done. Metrics are fractions.
    """

    title: str  # row of the table: everything but fold and repeat
    key: str
    version: str  # RESULTS_VERSION that computed it
    fingerprint: str  # of the data
    folder: Path
    status: Literal["done", "failed", "unfinished"]
    error: str = ""
    test: dict[str, float] = field(default_factory=dict)
    held_out: dict[str, float] | None = None
    steps: int = 0
    best_step: int | None = None
    seconds: float = 0.0
    seconds_testing: float = 0.0
    seconds_per_step: float | None = None
    pooling_parameters: int = 0
    head_parameters: int = 0
    dim: int = 0
    megabytes: float | None = None
    torch: str = ""
    lookalike: str = ""  # package version
    device: str = ""
    threads: int = 0
    cpu_seconds: float | None = None  # of training and testing, in all processes
    cpu_seconds_per_step: float | None = None
    asked_batch_size: int | None = None  # of the plan; the run may have had too few classes for it
    known_weights: dict[str, str] | None = None  # "file" and "trained_on", if weights come from a known file
    frozen: dict[str, Any] | None = None  # test metrics of the backbone's averaged features, and their "dim"
    settings: dict[str, Any] = field(default_factory=dict)  # of the run; empty if its settings.yaml is gone
    written: float = 0.0  # modification time of result.json

    @property
    def run(self) -> FoldRepeat:
        """(fold, repeat), counted from 0."""
        return self.fold, self.repeat

    @property
    def is_baseline(self) -> bool:
        """Whether this is the papers' baseline: average pooling (conventional: average+max) and no added method."""
        return self.pooling in (Choice("average"), Choice("average+max")) and not self.methods

    @property
    def tested(self) -> str:
        """Fingerprint of the test pictures; the whole fingerprint if it does not name them."""
        return tested_part(self.fingerprint)

    @property
    def seconds_of_step(self) -> float | None:
        """Seconds of a training step: of the CPU, or of the clock if it is a GPU that works."""
        return self.seconds_per_step if self.device == "cuda" else self.cpu_seconds_per_step

    @property
    def seconds_in_all(self) -> float | None:
        """Seconds of training and testing, likewise."""
        return self.seconds + self.seconds_testing if self.device == "cuda" else self.cpu_seconds

    @property
    def is_outdated(self) -> bool:
        """Whether another RESULTS_VERSION computed this result."""
        return self.version != str(RESULTS_VERSION)


def tested_part(fingerprint: str) -> str:
    """The part of a fingerprint that is of the test pictures; all of it if it does not name them."""
    words = fingerprint.split()
    if "test" in words[:-1]:
        return words[words.index("test") + 1]
    return fingerprint


_FIELDS = [entry.name for entry in fields(CellResult)]
MEASURED = _FIELDS[_FIELDS.index("test") : _FIELDS.index("cpu_seconds")]  # keys that only result.json has
ADDED = _FIELDS[_FIELDS.index("cpu_seconds") : _FIELDS.index("settings")]  # likewise, but earlier versions lack them


def read_results(folder: Path) -> tuple[list[CellResult], list[tuple[Path, str]]]:
    """Read every cell of a results folder.

    Args:
        folder: the ``--out`` of ``lookalike benchmark``.

    Returns:
        The cells in the order of their folders' names, and the folders that cannot be read with the reason.

    Raises:
        ValueError: ``folder`` does not exist.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    results = []
    unreadable = []
    for cell_folder in sorted((folder / "cells").glob("*")):
        if not cell_folder.is_dir():
            continue
        try:
            result = read_cell(cell_folder)
        except KeyError as error:
            unreadable.append((cell_folder, f"{error} is missing"))
        except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
            unreadable.append((cell_folder, " ".join(str(error).split())))
        else:
            if result is not None:
                results.append(result)
    return results, unreadable


def read_cell(folder: Path) -> CellResult | None:
    """Read one cell folder; None if nothing was written there yet."""
    result_file = folder / "result.json"
    if result_file.exists():
        content = _read_json(result_file)
        measured = {name: content[name] for name in MEASURED}
        measured |= {name: content.get(name) for name in ADDED}
        settings_file = folder / "run" / "settings.yaml"
        if settings_file.exists():
            measured["settings"] = read_yaml(settings_file)
        return CellResult(
            **_description(content), **measured, folder=folder, status="done", written=result_file.stat().st_mtime
        )
    if not (folder / "cell.json").exists():
        return None
    description = _description(_read_json(folder / "cell.json"))
    error = read_error(folder)
    if error is not None:
        return CellResult(**description, folder=folder, status="failed", error=error)
    return CellResult(**description, folder=folder, status="unfinished")


def read_error(folder: Path) -> str | None:
    """Why the cell in ``folder`` failed; None if it did not."""
    file = folder / "failed.json"
    if not file.exists():
        return None
    return str(_read_json(file)["error"])


def count_outdated(folder: Path) -> int:
    """The number of results in ``folder`` that another RESULTS_VERSION computed."""
    if not folder.is_dir():
        return 0
    results, _ = read_results(folder)
    return sum(result.status == "done" and result.is_outdated for result in results)


def differing_settings(results: Iterable[CellResult]) -> list[str]:
    """Names of the settings that are not the same in all of ``results``."""
    all_settings = [result.settings for result in results if result.settings]
    names: list[str] = []
    for settings in all_settings:
        for name in settings:
            is_new = name not in names and name not in PER_MODEL_SETTINGS
            if is_new and not _is_shared(name, all_settings):
                names.append(name)
    return names


def shared_settings(results: Iterable[CellResult]) -> dict[str, Any]:
    """The settings that all of ``results`` have in common."""
    all_settings = [result.settings for result in results if result.settings]
    if not all_settings:
        return {}
    shared = {}
    for name, value in all_settings[0].items():
        if name not in PER_MODEL_SETTINGS and _is_shared(name, all_settings):
            shared[name] = value
    return shared


def _is_shared(name: str, all_settings: Sequence[dict[str, Any]]) -> bool:
    first = all_settings[0].get(name)
    return all(settings.get(name) == first for settings in all_settings)


def _read_json(path: Path) -> dict[str, Any]:
    content = read_json(path, LARGEST_LIST)
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} must hold names and values, got {type(content).__name__}")
    return content


def _description(content: dict[str, Any]) -> dict[str, Any]:
    """The fields of a ``CellResult`` that say which cell it is."""
    values = {name: content[name] for name in DESCRIPTION}
    values["loss"] = Choice(**content["loss"])
    values["pooling"] = Choice(**content["pooling"])
    values["methods"] = tuple(Choice(**method) for method in content["methods"])
    # Before there was a version, results carried a hash of the source files as "code".
    values["version"] = str(content["version"] if "version" in content else content["code"])
    return values
