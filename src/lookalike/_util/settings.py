"""Declarative settings: dataclass fields with a help text and bounds, and one check for all of them.

@dataclass
class Settings:
    steps: int = setting(1000, "training steps", least=1)
    lr: float | None = setting(None, "learning rate; null: chosen from the data", above=0)
    schedule: Literal["constant", "cosine"] = setting("constant", "learning rate schedule")

    def __post_init__(self) -> None:
        check_settings(self)
"""

from dataclasses import dataclass, field, fields
from math import isfinite
from operator import ge, gt, le, lt
from os import PathLike
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from lookalike._util.suggestions import did_you_mean

EXPECTED = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", dict: "settings by name"}


@dataclass(frozen=True)
class Bounds:
    """Limits of a number: ``least`` and ``up_to`` are included, ``above`` and ``below`` are not."""

    least: float | None = None
    above: float | None = None
    up_to: float | None = None
    below: float | None = None

    def violation(self, value: float, *, whole: bool = False) -> str | None:
        """Describe what ``value`` should have been.

        Args:
            value: The number to check.
            whole: The setting is a whole number; then only the broken limit is named.

        Returns:
            For example "at least 1" or "in [0, 1)"; None if ``value`` is within the bounds.
        """
        declared = []
        for words, limit, holds in (
            ("at least", self.least, ge),
            ("above", self.above, gt),
            ("at most", self.up_to, le),
            ("below", self.below, lt),
        ):
            if limit is not None:
                declared.append((f"{words} {limit}", holds(value, limit)))
        broken = [words for words, holds in declared if not holds]
        if not broken and (isfinite(value) or not declared):
            return None
        if whole:
            return broken[0]
        if len(declared) == 1:
            return f"finite and {declared[0][0]}"
        lower = f"({self.above}" if self.least is None else f"[{self.least}"
        upper = f"{self.below})" if self.up_to is None else f"{self.up_to}]"
        return f"in {lower}, {upper}"


def setting(
    default: Any,
    explanation: str,
    *,
    least: float | None = None,
    above: float | None = None,
    up_to: float | None = None,
    below: float | None = None,
    group: str | None = None,
) -> Any:
    """Declare a dataclass field.

    Args:
        default: Default value. Dictionaries are copied for every instance.
        explanation: Help text of the command line and comment in YAML.
        least: Smallest allowed number.
        above: Numbers must be larger than this.
        up_to: Largest allowed number.
        below: Numbers must be smaller than this.
        group: Title of the group of settings that starts with this field.

    Returns:
        A ``dataclasses.field``. For tuples and lists, the bounds hold for every entry.
    """
    metadata = {"help": explanation, "group": group, "bounds": Bounds(least, above, up_to, below)}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def check_settings(settings: Any) -> None:
    """Check every field of a dataclass instance against its annotation and its declared bounds.

    None is accepted if the annotation allows it. Types other than bool, int, float, str, Literal, dict, and tuples
    and lists of them are not checked. A field annotated as ``str`` also accepts a path.

    Args:
        settings: Instance of a dataclass; call this from its ``__post_init__``.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If a number is out of bounds or a choice does not exist.
    """
    annotations = get_type_hints(type(settings))
    for entry in fields(settings):
        bounds = entry.metadata.get("bounds", Bounds())
        _check(entry.name, getattr(settings, entry.name), annotations[entry.name], bounds)


def _check(name: str, value: Any, annotation: Any, bounds: Bounds) -> None:
    kinds = [annotation]
    if get_origin(annotation) in (Union, UnionType):
        kinds = list(get_args(annotation))
    choices = choices_of(annotation)
    if value in choices or (value is None and NoneType in kinds):
        return
    if choices:
        expected = ", ".join(str(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {expected}, got {value!r}{did_you_mean(str(value), choices)}")
    origins = [get_origin(kind) or kind for kind in kinds]
    if not any(_accepts(origin, value) for origin in origins):
        expected = " or ".join(EXPECTED[origin] for origin in origins if origin in EXPECTED)
        raise TypeError(f"{name} must be {expected}, got {value!r}")
    if isinstance(value, (tuple, list)):
        _check_entries(name, value, annotation, bounds)
    elif isinstance(value, (int, float)):
        violation = bounds.violation(value, whole=float not in kinds)
        if violation is not None:
            raise ValueError(f"{name} must be {violation}, got {value}")


def _check_entries(name: str, values: Any, annotation: Any, bounds: Bounds) -> None:
    kinds = get_args(annotation)
    if get_origin(annotation) is tuple and Ellipsis not in kinds and len(values) != len(kinds):
        raise ValueError(f"{name} must be {len(kinds)} values, got {values}")
    for value in values:
        if kinds:
            _check(f"every one of {name}", value, kinds[0], bounds)


def choices_of(annotation: Any) -> tuple[Any, ...]:
    """Return the values of a ``Literal`` or of an optional one, else nothing."""
    for kind in (annotation, *get_args(annotation)):
        if get_origin(kind) is Literal:
            return get_args(kind)
    return ()


def _accepts(kind: Any, value: Any) -> bool:
    """Whether a value fits a type. Types that are not checked accept everything."""
    if kind not in EXPECTED:
        return kind is not NoneType
    if kind is str:
        return isinstance(value, (str, PathLike))
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)
