"""What lies in the folder of a benchmark: the models that are done, and those that are not."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from lookalike.experiments.choices import Choice
from lookalike.training.settings import FREE_ON_RESUME

# Settings that say where, how or by which seed a model was made; two models may differ in them and stand in one row.
OF_A_MODEL = (FREE_ON_RESUME - {"steps", "patience"}) | {"data", "log_every", "precision", "seed"}

Place = tuple[int, int]  # fold, repeat


@dataclass(frozen=True)
class About:
    """Which model of the benchmark this is."""

    protocol: str
    data: str
    loss: Choice
    pooling: Choice
    methods: tuple[Choice, ...]
    fold: int
    repeat: int
    title: str
    key: str
    code: str
    fingerprint: str
    folder: Path

    @property
    def place(self) -> Place:
        return self.fold, self.repeat

    @property
    def is_plain(self) -> bool:
        """The papers' baseline: average pooling, in conventional evaluation with the maximum, and nothing more."""
        return self.pooling in (Choice("average"), Choice("average+max")) and not self.methods

    @property
    def tested(self) -> str:
        """The part of the fingerprint that is of the test pictures; all of it if there is none."""
        words = self.fingerprint.split()
        return words[words.index("test") + 1] if "test" in words[:-1] else self.fingerprint


@dataclass(frozen=True)
class Result(About):
    """A model that was trained and tested. Figures are fractions."""

    test: dict[str, float]
    held_out: dict[str, float] | None
    steps: int
    best_step: int | None
    seconds: float
    seconds_testing: float
    seconds_per_step: float | None
    pooling_parameters: int
    head_parameters: int
    dim: int
    megabytes: float | None
    torch: str
    lookalike: str
    device: str
    threads: int
    settings: dict[str, Any]  # as its run had them, {} if they are gone
    written: float  # when


@dataclass(frozen=True)
class Findings:
    """All that lies in the folder of a benchmark."""

    results: list[Result]
    failed: list[tuple[About, str]]
    unfinished: list[About]
    unreadable: list[tuple[Path, str]]


def read(folder: Path) -> Findings:
    """What ``folder``/cells holds; a cell whose files cannot be read is listed, and the others are not lost for it."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    found = Findings([], [], [], [])
    for cell in sorted(path for path in (folder / "cells").glob("*") if path.is_dir()):
        result, about, failure = (cell / name for name in ("result.json", "cell.json", "failed.json"))
        try:
            if result.exists():
                found.results.append(_result(result))
            elif about.exists() and failure.exists():
                found.failed.append((_about(_json(about), cell), str(_json(failure)["error"])))
            elif about.exists():
                found.unfinished.append(_about(_json(about), cell))
        except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
            missing = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
            found.unreadable.append((cell, missing))
    return found


def read_results(folder: Path) -> list[Result]:
    """The models in ``folder`` that are done."""
    return read(folder).results


def _json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} must hold names and values, got {type(content).__name__}")
    return content


def _about(content: dict[str, Any], folder: Path) -> About:
    return About(**_what(content, folder))


def _what(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    names = [entry.name for entry in fields(About)]
    values = {name: content[name] for name in names if name != "folder"}
    values |= {name: Choice(**content[name]) for name in ("loss", "pooling")}
    values["methods"] = tuple(Choice(**method) for method in content["methods"])
    return {**values, "folder": folder}


def _result(path: Path) -> Result:
    content = _json(path)
    own = [entry.name for entry in fields(Result) if entry.name not in {each.name for each in fields(About)}]
    measured = {name: content[name] for name in own if name not in ("settings", "written")}
    saved = path.parent / "run" / "settings.yaml"
    settings = yaml.safe_load(saved.read_text(encoding="utf-8")) if saved.exists() else {}
    return Result(**_what(content, path.parent), **measured, settings=settings, written=path.stat().st_mtime)


def differing(results: Iterable[Result]) -> list[str]:
    """The settings that are not the same in all of these."""
    known = [each.settings for each in results if each.settings]
    names = dict.fromkeys(name for settings in known for name in settings if name not in OF_A_MODEL)
    return [name for name in names if any(settings.get(name) != known[0].get(name) for settings in known)]


def shared_settings(results: Iterable[Result]) -> dict[str, Any]:
    """The settings that all of these have in common."""
    known = [each.settings for each in results if each.settings]
    names = known[0] if known else {}
    return {
        name: value
        for name, value in names.items()
        if name not in OF_A_MODEL and all(settings.get(name) == value for settings in known)
    }
