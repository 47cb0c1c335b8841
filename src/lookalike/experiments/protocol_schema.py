"""The content of a protocol file: held-out classes, repeats, what is reported, and layers of settings for the runs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

from lookalike import objectives
from lookalike import pooling as poolings
from lookalike._util.checks import check_count
from lookalike._util.settings import check_settings
from lookalike._util.suggestions import did_you_mean
from lookalike.experiments.choices import Choice, parse_choices
from lookalike.experiments.layers import KINDS, Layer, check_layer

METHODS = ("zero-shot", "memory", "ccp", "centres", "libc")  # what may be added to a loss


@dataclass(frozen=True)
class Split:
    """How the training classes are divided.

    Attributes:
        folds: number of contiguous ranges of the training classes; 1: no classes are held out.
        models: how many models are trained, each with another range held out; the last ranges if fewer than folds.
        steered_by: the classes that stop a run and choose its weights: held-out "validation" classes, or "test". With
            "nothing" all steps are done and the last weights are tested.

    Raises:
        ValueError: the values contradict each other.
    """

    folds: int
    models: int
    steered_by: Literal["validation", "test", "nothing"] = "validation"

    def __post_init__(self) -> None:
        check_count("split.folds", self.folds)
        check_count("split.models", self.models)
        if self.models > self.folds:
            raise ValueError(f"split.models must be at most split.folds {self.folds}, got {self.models}")
        if self.steered_by not in ("validation", "test", "nothing"):
            raise ValueError(f"split.steered_by must be 'validation', 'test' or 'nothing', got {self.steered_by!r}")
        if (self.folds == 1) != (self.steered_by != "validation"):
            raise ValueError(
                "split.steered_by 'validation' needs at least 2 folds, 'test' and 'nothing' exactly 1, "
                f"got {self.folds} folds"
            )


@dataclass(frozen=True)
class Protocol:
    """A protocol as its file describes it.

    Attributes:
        repeats: of every model.
        report: the mean over combinations of one model per fold, the mean over repeats, or the best repeat by the
            monitored metric.
        sizes: of the embedding, the usual one first; by backbone if they differ.
        backbones: the usual one first.
        poolings: the rows of a benchmark that names none, with settings in brackets; the baseline first.
        training: settings of every run.
        default_losses: the losses of a benchmark that names none, with settings in brackets.
        default_methods: the methods of a benchmark that names none, as after ``--methods``.
        concatenate: also measure the concatenated vectors of all models.
        tables: published numbers to print beside.
        losses: settings by kind of loss ("pair", "proxy") and by name.
        pooling: settings by name; also used for poolings that are combined with it by a +.
        methods: settings by name.
        deviations: where this file departs from the printed text, and why, by the setting or subject.

    Raises:
        ValueError: a name or value does not exist.
        TypeError: a value has the wrong type.
    """

    name: str
    title: str
    split: Split
    repeats: int
    report: Literal["combinations", "mean", "best"]
    sizes: list[int] | dict[str, list[int]]
    backbones: list[str]
    poolings: list[str]
    training: Layer
    default_losses: list[str] = field(default_factory=lambda: ["c2"])
    default_methods: list[str] = field(default_factory=lambda: ["none"])
    concatenate: bool = False
    tables: list[str] = field(default_factory=list)
    losses: dict[str, Layer] = field(default_factory=dict)
    pooling: dict[str, Layer] = field(default_factory=dict)
    methods: dict[str, Layer] = field(default_factory=dict)
    deviations: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_count("repeats", self.repeats)
        for name in ("backbones", "poolings", "default_losses", "default_methods", "tables"):
            _check_names(name, getattr(self, name), may_be_empty=name == "tables")
        _check_deviations(self.deviations)
        _ = self.pooling_choices  # checks their names
        for backbone in self.backbones:
            for size in self.sizes_for(backbone):
                check_count("every one of sizes", size)
        check_layer("training", self.training, self.backbones, complete=True)
        self._check_layers("losses", [*KINDS, *objectives.names()])
        self._check_layers("pooling", sorted(_single_poolings()))
        self._check_layers("methods", list(METHODS))
        check_settings(self)

    def _check_layers(self, section: str, names: list[str]) -> None:
        layers = getattr(self, section)
        if not isinstance(layers, dict):
            raise TypeError(f"{section} must hold settings by {', '.join(names)}, got {layers!r}")
        for name, layer in layers.items():
            if name not in names:
                hint = did_you_mean(str(name), names) or f"; there are: {', '.join(names)}"
                raise ValueError(f"{section} has an unknown name {name!r}{hint}")
            check_layer(f"{section}.{name}", layer, self.backbones, complete=False)

    @property
    def runs(self) -> list[tuple[int, int]]:
        """(fold, repeat) of every model to train for one row of the table."""
        return list(product(range(self.split.models), range(self.repeats)))

    @property
    def pooling_choices(self) -> list[Choice]:
        """``poolings`` with their settings."""
        return parse_choices(", ".join(self.poolings), poolings.names(), "pooling")

    def deviations_of(self, runs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
        """The deviations that concern some runs.

        Args:
            runs: settings of ``lookalike train`` of each run, by name.

        Returns:
            ``deviations`` without those whose subject begins with a pooling or method that no run has, or is a setting
            that no run has as the protocol sets it.
        """
        used: set[str] = set()
        every_run = list(runs)
        for settings in every_run:
            pooling = str(settings["pooling"])
            used.update([pooling, *pooling.split("+")])
            used.update(name for name in METHODS if settings.get(name.replace("-", "_")))
        conditional = {*METHODS, *_single_poolings(), *poolings.names()}
        relevant = {}
        for subject, reason in self.deviations.items():
            word = subject.split()[0]
            if (word in used or word not in conditional) and self._holds(subject, every_run):
                relevant[subject] = reason
        return relevant

    def _holds(self, subject: str, runs: list[Mapping[str, Any]]) -> bool:
        """Whether some run has the settings that a subject names, such as "clip_norm, clip_value"; else True."""
        for name in subject.split(", "):
            expected = self.training.get(name)
            if expected is None or isinstance(expected, dict) or not runs:
                continue
            values = [run.get(name, expected) for run in runs]
            if all(_as_list(value) != expected for value in values):
                return False
        return True

    def held_out(self, fold: int) -> int | None:
        """Number of the range of classes that a model does not train on; None if it trains on all."""
        if self.split.folds == 1:
            return None
        return self.split.folds - self.split.models + fold

    def sizes_for(self, backbone: str) -> list[int]:
        """Sizes of the embedding for a backbone; those of the first backbone for an unknown one."""
        sizes = self.sizes
        if isinstance(sizes, dict):
            missing = [name for name in self.backbones if name not in sizes]
            if missing:
                raise ValueError(f"sizes are written out by backbone and lack {', '.join(missing)}")
            sizes = sizes.get(backbone, sizes[self.backbones[0]])
        if not isinstance(sizes, list) or not sizes:
            raise TypeError(f"sizes must be a list of whole numbers, or such lists by backbone, got {self.sizes!r}")
        return sizes


def _as_list(value: Any) -> Any:
    """Tuples as YAML and JSON write them."""
    return list(value) if isinstance(value, tuple) else value


def _single_poolings() -> set[str]:
    """The names of poolings, with the parts of joined ones such as ``max+gsp``."""
    single: set[str] = set()
    for name in poolings.names():
        single.update(name.split("+"))
    return single


def _check_names(section: str, names: Any, may_be_empty: bool) -> None:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{section} must be a list of names, got {names!r}")
    if not names and not may_be_empty:
        raise ValueError(f"{section} must name at least one, got none")


def _check_deviations(deviations: Any) -> None:
    if not isinstance(deviations, dict):
        raise TypeError(f"deviations must hold a reason by setting or subject, got {deviations!r}")
    for subject, reason in deviations.items():
        if not isinstance(reason, str) or not reason.strip():
            raise TypeError(f"deviations.{subject} must say what differs and why, got {reason!r}")
