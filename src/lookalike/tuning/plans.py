"""Named plans of tuning: the searches of the papers as YAML files in ``plans/``, or a file of the user.

    plan = load_plan("factorial")
    plan.loss, len(plan.runs)

A plan says which settings are searched and how: ``search`` with a sampler, or ``runs`` one by one. Options of the
command line override it. ``open`` lists what its source leaves open.
"""

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import yaml

from lookalike._util.settings import check_settings, setting
from lookalike._util.suggestions import did_you_mean
from lookalike._util.untrusted import read_yaml
from lookalike.experiments.choices import check_names, split_top_level
from lookalike.experiments.published import TABLES

FILES = Path(__file__).parent / "plans"


@dataclass(frozen=True)
class TuningPlan:
    """A search as its YAML file describes it."""

    name: str = setting("", "of the file")
    title: str = setting("", "of the report")
    protocol: str = setting("quick", "says which runs a trial has")
    loss: str = setting("c2", "with settings in brackets")
    pooling: str = setting("gsp", "with settings in brackets")
    methods: str = setting("none", "one case, as zero-shot or xbm+zero-shot")
    set: dict[str, Any] = setting({}, "settings of lookalike train that all trials share")
    search: str | dict[str, Any] = setting("", "the search space, see lookalike.tuning.space")
    runs: list[dict[str, Any]] = field(default_factory=list)  # instead of a search: all points, in order
    sampler: Literal["auto", "tpe", "gp", "random", "grid"] = setting(
        "auto", "auto: grid if all axes are lists and the trials suffice, else tpe"
    )
    trials: int | None = setting(None, "null: every point, or 30", least=1)
    prune: bool | None = setting(None, "null: only if the sampler proposes the points")
    published: str = setting("", "the table of the thesis that has these runs")
    open: list[str] = field(default_factory=list)  # what the source leaves open

    def __post_init__(self) -> None:
        check_settings(self)
        for name in ("runs", "open"):
            if not isinstance(getattr(self, name), list):
                raise TypeError(f"{name} must be a list, got {getattr(self, name)!r}")
        for run in self.runs:
            if not isinstance(run, dict) or not run:
                raise TypeError(f"every one of runs must hold settings by name, got {run!r}")
        if self.published and self.published not in TABLES:
            raise ValueError(f"published must be one of {', '.join(TABLES)}, got {self.published!r}")
        if len(split_top_level(self.methods, ",")) > 1:
            raise ValueError(f"methods must be one case, joined by +, got {self.methods!r}")


def names() -> list[str]:
    """The plans that come with the package."""
    return sorted(path.stem for path in FILES.glob("*.yaml"))


def load_plan(name_or_path: str | Path) -> TuningPlan:
    """Load a plan by its name, or from a YAML file.

    Raises:
        ValueError: there is no such plan, or it has a wrong value.
        TypeError: a value has the wrong type.

    Examples:
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
        return _read_plan(path)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: it cannot be read as YAML: {' '.join(str(error).split())}") from None
    except (ValueError, TypeError) as error:
        raise type(error)(f"{path}: {error}") from None


def _read_plan(path: Path) -> TuningPlan:
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise TypeError(f"a plan must hold settings by name, got {type(values).__name__}")
    check_names("a plan has no key", values, [entry.name for entry in fields(TuningPlan)])
    if bool(values.get("search")) == bool(values.get("runs")):
        raise ValueError("a plan must have either search or runs")
    return TuningPlan(**{"name": path.stem, **values})
