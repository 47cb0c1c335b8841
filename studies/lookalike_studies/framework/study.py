"""What a study consists of: settings, a function that runs it, and its results.

Every study has a folder with ``study.py``, which ends with ``STUDY = Study(...)``, and ``settings.yaml``. Settings are
a frozen dataclass without defaults. Their values are in the YAML file at three scales: ``full`` (the papers), ``quick``
and ``miniature``. The last two may change only budgets: steps, samples and seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import yaml

from lookalike._util.settings import Bounds, check_settings
from lookalike._util.suggestions import did_you_mean
from lookalike_studies.framework.claims import JudgedClaim
from lookalike_studies.framework.seeds import check_seeds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lookalike.report.tables import Table
    from lookalike_studies.framework.context import Context

Scale = Literal["full", "quick", "miniature"]
Differences = dict[str, tuple[Any, Any]]  # by setting: the papers' value, the value here


def setting(
    explanation: str,
    *,
    budget: bool = False,
    may_be_empty: bool = False,
    least: float | None = None,
    above: float | None = None,
    up_to: float | None = None,
    below: float | None = None,
) -> Any:
    """Declare a setting of a study; its value is in ``settings.yaml``.

    Args:
        explanation: Help text.
        budget: Marks steps, samples and seeds, which ``--quick`` may lower.
        may_be_empty: Allows a tuple without entries.
        least: Smallest allowed number.
        above: Numbers must be larger than this.
        up_to: Largest allowed number.
        below: Numbers must be smaller than this.

    Returns:
        A ``dataclasses.field`` for ``StudySettings``.
    """
    bounds = Bounds(least, above, up_to, below)
    return field(metadata={"help": explanation, "budget": budget, "may_be_empty": may_be_empty, "bounds": bounds})


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
    """What a study found.

    Attributes:
        claims: The papers' claims with their verdicts.
        figures: By file name, a figure and its caption; saved as PNG, SVG and JSON.
        tables: By file name; saved as CSV.
        numbers: Everything that was measured, for JSON.
        notes: Sentences for the terminal and the page.
        behind: By title, where something that the settings name, such as a protocol, differs from the papers.
    """

    claims: list[JudgedClaim] = field(default_factory=list)
    figures: dict[str, tuple[Figure, str]] = field(default_factory=dict)
    tables: dict[str, Table] = field(default_factory=dict)
    numbers: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    behind: dict[str, Differences] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A study of the papers.

    Attributes:
        name: Name on the command line.
        title: One line.
        about: What is done, for the page.
        source: Figure or section of the papers.
        settings: Dataclass of the settings.
        run: Runs the study.
        data: What ``--data`` accepts; "": the study takes no data.
        needs_data: Whether ``--data`` is required.
        choices: What else can be chosen, for ``lookalike study list``.
        has_parts: Whether it has independent parts, which ``--executor`` can distribute.
    """

    name: str
    title: str
    about: str
    source: str
    settings: type[Any]
    run: Callable[[Any, Context], StudyResult]
    data: str = ""
    needs_data: bool = False
    choices: str = ""
    has_parts: bool = True

    def load_settings(self, scale: Scale, changes: Mapping[str, Any] | None = None) -> Any:
        """Read the settings at one scale and apply changes.

        Args:
            scale: "full", "quick" or "miniature".
            changes: Other values by name.

        Returns:
            An instance of ``self.settings``.

        Raises:
            ValueError: If a setting does not exist or is out of bounds.
            TypeError: If a value has the wrong type.
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
            values[name] = _convert(name, value, annotations[name])
        return self.settings(**values)

    def read_yaml(self) -> dict[str, dict[str, Any]]:
        """Read ``settings.yaml`` of the study's folder.

        Returns:
            By scale, the values by name.

        Raises:
            ValueError: If a setting is missing or a scale changes more than budgets.
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


def _convert(name: str, value: Any, annotation: Any) -> Any:
    """Convert a YAML value to the annotated type: lists become tuples, whole numbers floats."""
    kinds = (annotation,)
    if type(None) in get_args(annotation):
        kinds = get_args(annotation)
        if value is None:
            return None
    for kind in kinds:
        if get_origin(kind) is tuple:
            entries = value if isinstance(value, (list, tuple)) else [value]
            return tuple(_convert(name, entry, get_args(kind)[0]) for entry in entries)
        if get_origin(kind) is Literal:  # check_settings knows the choices
            return value
        if kind is not bool and isinstance(value, bool):
            continue
        if kind is float and isinstance(value, (int, float)):
            return float(value)
        if isinstance(kind, type) and isinstance(value, kind):
            return value
    raise TypeError(f"{name} must be {getattr(annotation, '__name__', annotation)}, got {value!r}")
