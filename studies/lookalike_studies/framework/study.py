"""What a study is: settings one can read, a function that finds out, and what is left of it to look at.

A study lives in a file of its own and ends with ``STUDY = Study(...)``. Its settings are a frozen dataclass without
defaults; the values stand in ``settings.yaml``: ``full`` (the papers), ``quick``, ``miniature``. The last
two may change nothing but what is marked as budget: steps, samples and seeds.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from hashlib import blake2b
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

import numpy as np
import yaml

from lookalike._util.files import replacing
from lookalike._util.suggestions import did_you_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lookalike._util.progress import Display
    from lookalike.report.tables import Table

Scale = Literal["full", "quick", "miniature"]
Verdict = Literal["reproduced", "partly", "not reproduced", "not tested"]
Differences = dict[str, tuple[Any, Any]]  # name -> (the papers', here)
REST, SECONDS = "json", "seconds of the part"  # in the file of a part: what is no array, and how long it took
PARTS_VERSION = 1  # raise it when the same settings would give other parts


def value(explanation: str, *, budget: bool = False) -> Any:
    """A setting of a study; ``budget`` marks steps, samples and seeds, which ``--quick`` may lower."""
    return field(metadata={"help": explanation, "budget": budget})


@dataclass(frozen=True)
class Claim:
    """One thing that the authors say, what was seen here, and whether the two agree."""

    paper: str
    here: str
    verdict: Verdict


@dataclass
class Findings:
    """figures: by name, with a caption each, to be saved as PNG and SVG, and what they show as JSON.  tables: by name,
    to be saved as CSV.  numbers: what was measured, for JSON.  behind: where the settings name something else, such as
    a protocol, how that differs from the papers', by a title."""

    claims: list[Claim] = field(default_factory=list)
    figures: dict[str, tuple[Figure, str]] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    behind: dict[str, Differences] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """name: as it is typed.  title: one line.  about: what is done, for the page.  source: of the papers' figure.
    data: what ``--data`` takes, "" where nothing is needed.  choices: what else is to be chosen, for the list."""

    name: str
    title: str
    about: str
    source: str
    settings: type[Any]
    find: Callable[[Any, Bench], Findings]
    data: str = ""
    needs_data: bool = False
    choices: str = ""

    def chosen(self, scale: Scale, changes: Mapping[str, Any] | None = None) -> Any:
        """The settings: those of the YAML file at this scale, then ``changes``."""
        described = self.described()
        values = {**described["full"], **(described[scale] if scale != "full" else {}), **(changes or {})}
        hints = get_type_hints(self.settings)
        for name in values:
            if name not in hints:
                raise ValueError(f"the study {self.name} has no setting {name!r}{did_you_mean(name, hints)}")
        return self.settings(**{name: _fitting(name, given, hints[name]) for name, given in values.items()})

    def described(self) -> dict[str, dict[str, Any]]:
        """Settings at every scale, from ``settings.yaml`` in the study's folder."""
        folder = self.name.replace("-", "_")
        text = (files("lookalike_studies") / folder / "settings.yaml").read_text(encoding="utf-8")
        described: dict[str, dict[str, Any]] = yaml.safe_load(text)
        names = {entry.name: entry for entry in fields(self.settings)}
        if set(described["full"]) != {name for name, entry in names.items() if entry.default is MISSING}:
            raise ValueError(f"{folder}/settings.yaml must give every setting under full, and no other")
        for scale in ("quick", "miniature"):
            for name in described.setdefault(scale, {}) or {}:
                if name not in names or not names[name].metadata["budget"]:
                    raise ValueError(f"{folder}/settings.yaml: {scale} may change budgets only, got {name}")
        return described

    def reduced(self, settings: Any) -> Differences:
        """Where ``settings`` differ from the papers'."""
        full, these = asdict(self.chosen("full")), asdict(settings)
        return {name: (full[name], these[name]) for name in full if full[name] != these[name]}


class Bench:
    """Where a study works: its data, its display, and its parts that are not computed twice.

    data: what ``--data`` said, None where nothing was said.  out: the folder of the study.  settings: all of them, by
    name.  code: which code computes, and of which files.  earlier: how many seconds the parts took that an earlier run
    has computed.
    """

    def __init__(
        self,
        out: Path,
        display: Display,
        data: str | None = None,
        settings: Mapping[str, Any] | None = None,
        code: str = "",
    ) -> None:
        self.out, self.display, self.data = out, display, data
        self.earlier = 0.0
        self._settings, self._code = dict(settings or {}), code

    def part(
        self, name: str, compute: Callable[[], Mapping[str, Any]], *, whatever: Collection[str] = ()
    ) -> dict[str, Any]:
        """What ``compute`` gives: arrays, and whatever JSON can hold; from ``parts/`` if it was computed before.

        A study that was broken off goes on after the last part. Other settings, data or code make other parts, but for
        settings that the part does not depend on, ``whatever`` they are: one more seed leaves those before it alone.
        """
        decisive = {key: each for key, each in self._settings.items() if key not in whatever}
        key = json.dumps([name, decisive, self.data, self._code], default=str)
        words = blake2b(key.encode(), digest_size=6).hexdigest()
        readable = "".join(letter if letter.isalnum() else "-" for letter in name)[:60]
        file = self.out / "parts" / f"{readable}-{words}.npz"
        if file.exists():
            found, seconds = _read_part(file)
            self.earlier += seconds
            return found
        started = time.monotonic()
        _write_part(file, dict(compute()), started)
        return _read_part(file)[0]


def bench(study: Study, settings: Any, out: Path, display: Display, data: str | None = None) -> Bench:
    """A bench whose parts belong to these settings, these data and this code, whatever its figures look like."""
    what = f"{study.name} {PARTS_VERSION} {fingerprint(data or '')}"
    return Bench(out, display, data, asdict(settings), what)


def fingerprint(data: str) -> str:
    """Of the files that ``--data`` names, by their paths, sizes and times: other pictures make other parts."""
    found = blake2b(digest_size=8)
    for piece in re.split(r"[,()]", data):
        for named in sorted({piece.strip(), piece.partition(":")[2].strip()} - {""}):
            for file in sorted([Path(named), *Path(named).rglob("*")]):
                if file.is_file():
                    known = file.stat()
                    found.update(f"{file} {known.st_size} {known.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return found.hexdigest()


def _write_part(file: Path, found: dict[str, Any], started: float) -> None:
    arrays = {key: each for key, each in found.items() if isinstance(each, np.ndarray)}
    rest = {key: each for key, each in found.items() if key not in arrays}
    seconds = np.array(time.monotonic() - started)
    everything: dict[str, Any] = {**arrays, REST: np.array(json.dumps(rest)), SECONDS: seconds}
    with replacing(file) as unfinished, unfinished.open("wb") as stream:
        np.savez(stream, **everything)


def _read_part(file: Path) -> tuple[dict[str, Any], float]:
    with np.load(file, allow_pickle=False) as stored:
        arrays = {key: stored[key] for key in stored.files if key not in (REST, SECONDS)}
        return {**json.loads(str(stored[REST])), **arrays}, float(stored[SECONDS])


def _fitting(name: str, given: Any, kind: Any) -> Any:
    """The value as the type that the setting has: lists become tuples, whole numbers floats."""
    kinds = get_args(kind) if type(None) in get_args(kind) else (kind,)
    if given is None and type(None) in kinds:
        return None
    for each in kinds:
        if getattr(each, "__origin__", None) is tuple:
            inner = get_args(each)[0]
            listed = given if isinstance(given, (list, tuple)) else [given]
            return tuple(_fitting(name, one, inner) for one in listed)
        if each is float and isinstance(given, (int, float)) and not isinstance(given, bool):
            return float(given)
        if isinstance(each, type) and isinstance(given, each) and (each is bool or not isinstance(given, bool)):
            return given
    raise TypeError(f"{name} must be {getattr(kind, '__name__', kind)}, got {given!r}")
