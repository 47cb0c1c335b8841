"""What a study consists of: settings, a function that runs it, and its results.

Every study has a folder with ``study.py``, which ends with ``STUDY = Study(...)``, and ``settings.yaml``. Settings are
a frozen dataclass without defaults. Their values are in the YAML file at three scales: ``full`` (the papers), ``quick``
and ``miniature``. The last two may change only budgets: steps, samples and seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from importlib.resources import files
from inspect import signature
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import yaml
from matplotlib.figure import Figure

from lookalike._util.settings import Bounds, check_settings
from lookalike._util.suggestions import did_you_mean
from lookalike.report.tables import Table
from lookalike_studies.framework.claims import JudgedClaim
from lookalike_studies.framework.context import Context
from lookalike_studies.framework.tables import check_seeds

T = TypeVar("T")
Scale = Literal["full", "quick", "miniature"]
Differences = dict[str, tuple[Any, Any]]  # by setting: the papers' value, the value here


def setting(explanation: str, *, budget: bool = False, may_be_empty: bool = False, **bounds: float) -> Any:
    """Declare a setting of a study; its value is in ``settings.yaml``.

    ``budget`` marks steps, samples and seeds, which ``--quick`` may lower. ``bounds``: numbers must be at least
    ``least``, larger than ``above``, at most ``up_to`` and smaller than ``below``.
    """
    metadata = {"help": explanation, "budget": budget, "may_be_empty": may_be_empty, "bounds": Bounds(**bounds)}
    return field(metadata=metadata)


def create_from(kind: Callable[..., T], settings: Any, **others: Any) -> T:
    """Create a dataclass or named tuple from the settings that have the name of one of its fields, and ``others``."""
    values = {name: getattr(settings, name) for name in signature(kind).parameters if hasattr(settings, name)}
    return kind(**{**values, **others})


class StudySettings:
    """Base of the settings of all studies: checks types, bounds, seeds and empty tuples."""

    def __post_init__(self) -> None:
        check_settings(self)
        for entry in fields(self):  # type: ignore[arg-type]  # subclasses are dataclasses
            value = getattr(self, entry.name)
            if isinstance(value, tuple) and entry.name.endswith("seeds"):
                check_seeds(value, entry.name)
            elif value == () and not entry.metadata["may_be_empty"]:
                raise ValueError(f"{entry.name} must name at least one, got none")


@dataclass
class StudyResult:
    """What a study found."""

    claims: list[JudgedClaim] = field(default_factory=list)  # the papers' claims with their verdicts
    # by file name, a figure and its caption; saved as PNG, SVG and JSON
    figures: dict[str, tuple[Figure, str]] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)  # by file name; saved as CSV
    numbers: dict[str, Any] = field(default_factory=dict)  # everything that was measured, for JSON
    notes: list[str] = field(default_factory=list)  # sentences for the terminal and the page
    # by title, where the protocols that the settings name differ from the papers
    protocol_differences: dict[str, Differences] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A study of the papers."""

    name: str  # name on the command line
    title: str  # one line
    about: str  # what is done, for the page
    source: str  # figure or section of the papers
    settings: type[Any]  # dataclass of the settings
    run: Callable[[Any, Context], StudyResult]  # runs the study
    data: str = ""  # what ``--data`` accepts; "": the study takes no data
    needs_data: bool = False  # whether ``--data`` is required
    choices: str = ""  # what else can be chosen, for ``lookalike study list``
    has_parts: bool = True  # whether it has independent parts, which ``--executor`` can distribute

    def load_settings(self, scale: Scale, changes: Mapping[str, Any] | None = None) -> Any:
        """Read the settings at one scale and apply changes by name.

        Raises ValueError for an unknown setting or a value out of bounds, TypeError for a value of the wrong type.
        """
        described = self.read_yaml()
        values = dict(described["full"])
        if scale != "full":
            values.update(described[scale])
        values.update(changes or {})
        annotations = get_type_hints(self.settings)
        for name, value in values.items():
            if name not in annotations:
                raise ValueError(f"the study {self.name} has no setting {name!r}{did_you_mean(name, annotations)}")
            values[name] = _convert(value, annotations[name])
        return self.settings(**values)

    def read_yaml(self) -> dict[str, dict[str, Any]]:
        """Read ``settings.yaml`` of the study's folder: by scale, the values by name.

        Raises ValueError if a setting is missing or a scale changes more than budgets.
        """
        folder = self.name.replace("-", "_")
        text = (files("lookalike_studies") / folder / "settings.yaml").read_text(encoding="utf-8")
        described: dict[str, dict[str, Any]] = yaml.safe_load(text)
        entries = {entry.name: entry for entry in fields(self.settings)}
        without_default = {name for name, entry in entries.items() if entry.default is MISSING}
        if set(described["full"]) != without_default:
            raise ValueError(f"{folder}/settings.yaml must give every setting under full, and no other")
        for scale in ("quick", "miniature"):
            for name in described.setdefault(scale, {}) or {}:
                if name not in entries or not entries[name].metadata["budget"]:
                    raise ValueError(f"{folder}/settings.yaml: {scale} may change budgets only, got {name}")
        return described

    def reduced(self, settings: Any) -> Differences:
        """Return where ``settings`` differ from the papers'."""
        papers, here = asdict(self.load_settings("full")), asdict(settings)
        return {name: (papers[name], here[name]) for name in papers if papers[name] != here[name]}


def _convert(value: Any, annotation: Any) -> Any:
    """Convert a YAML value: lists become tuples, whole numbers floats; ``check_settings`` checks the result."""
    if get_origin(annotation) is tuple:
        entries = value if isinstance(value, (list, tuple)) else [value]
        return tuple(_convert(entry, get_args(annotation)[0]) for entry in entries)
    if annotation is float and type(value) is int:
        return float(value)
    return value
