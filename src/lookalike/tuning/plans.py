"""Named plans of tuning: what the papers searched, as YAML files that one can read, in ``plans/``; or a file of yours.

    plan = load_plan("factorial")
    plan.loss, len(plan.runs)

A plan says which settings are searched and how: ``search`` with a sampler, or ``runs`` one by one. What is typed on the
line goes before it. ``open`` lists what its source leaves unsaid.
"""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from lookalike._util.checks import check_count
from lookalike._util.suggestions import did_you_mean
from lookalike.experiments.choices import split_top_level
from lookalike.experiments.published import TABLES

FILES = Path(__file__).parent / "plans"
SAMPLERS = ("auto", "tpe", "gp", "random", "grid")
TEXTS = ("name", "title", "protocol", "loss", "pooling", "methods", "sampler", "published")


@dataclass(frozen=True)
class TuningPlan:
    name: str = ""
    title: str = ""
    protocol: str = "tuning"
    loss: str = "c2"
    pooling: str = "gsp"
    methods: str = "none"  # one case, as zero-shot or xbm+zero-shot
    set: dict[str, Any] = field(default_factory=dict)  # settings of lookalike train that all trials have
    search: str | dict[str, Any] = ""  # see search_space
    runs: list[dict[str, Any]] = field(default_factory=list)  # instead: every point, in order
    sampler: str = "auto"  # grid where all is lists and the trials suffice, else tpe
    trials: int | None = None  # None: every point, or 30
    prune: bool | None = None  # None: only where the sampler chooses
    published: str = ""  # the table of the thesis that has these runs
    open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in TEXTS:
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"{name} must be a text, got {getattr(self, name)!r}")
        for name, kind, what in (
            ("set", dict, "settings by name"),
            ("runs", list, "a list of settings"),
            ("open", list, "a list"),
        ):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name} must be {what}, got {getattr(self, name)!r}")
        if not isinstance(self.search, (str, dict)):
            raise TypeError(f"search must hold lists and ranges by name, got {self.search!r}")
        if wrong := [run for run in self.runs if not isinstance(run, dict) or not run]:
            raise TypeError(f"every one of runs must hold settings by name, got {wrong[0]!r}")
        if self.sampler not in SAMPLERS:
            known = did_you_mean(self.sampler, SAMPLERS) or f"; there are: {', '.join(SAMPLERS)}"
            raise ValueError(f"there is no sampler {self.sampler!r}{known}")
        if self.trials is not None:
            check_count("trials", self.trials)
        if self.published and self.published not in TABLES:
            raise ValueError(f"published must be one of {', '.join(TABLES)}, got {self.published!r}")
        if self.prune is not None and not isinstance(self.prune, bool):
            raise TypeError(f"prune must be true or false, got {self.prune!r}")
        if len(split_top_level(self.methods, ",")) > 1:
            raise ValueError(f"methods must be one case, joined by +, got {self.methods!r}")


def names() -> list[str]:
    """The plans that come with the package."""
    return sorted(path.stem for path in FILES.glob("*.yaml"))


def load_plan(name_or_path: str | Path) -> TuningPlan:
    """
    >>> load_plan("factorial").runs[0]["zero_shot"]
    0.1
    """
    path = Path(name_or_path).expanduser()
    if str(name_or_path) in names():
        path = FILES / f"{name_or_path}.yaml"
    elif not path.is_file():
        hint = did_you_mean(str(name_or_path), names()) or f"; there are: {', '.join(names())}, or a file"
        raise ValueError(f"there is no plan {str(name_or_path)!r}{hint}")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        if not isinstance(values, dict):
            raise TypeError(f"a plan must hold settings by name, got {type(values).__name__}")
        known = [entry.name for entry in fields(TuningPlan)]
        for key in values:
            if key not in known:
                raise ValueError(f"a plan has no key {key!r}{did_you_mean(str(key), known)}")
        if bool(values.get("search")) == bool(values.get("runs")):
            raise ValueError("a plan must have either search or runs")
        return TuningPlan(**{"name": path.stem, **values})
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: it cannot be read as YAML: {' '.join(str(error).split())}") from None
    except (ValueError, TypeError) as error:
        raise type(error)(f"{path}: {error}") from None
