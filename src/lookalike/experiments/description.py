"""What a protocol is: the classes it holds out, what it repeats and averages, and layers of settings for its runs."""

from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal, get_args

from lookalike import objectives
from lookalike import pooling as poolings
from lookalike._util.checks import check_count
from lookalike._util.suggestions import did_you_mean
from lookalike.experiments.layers import KINDS, Layer, check_layer

METHODS = ("zero-shot", "memory", "ccp", "centres")  # what may be added to a loss

Report = Literal["combinations", "mean", "best"]


@dataclass(frozen=True)
class Split:
    """folds: contiguous ranges of the training classes; 1: none are held out.
    models: how many are trained, each with another range held out; fewer than folds: the last ranges.
    steered_by: what stops a run and chooses its weights: the held-out "validation" classes, or the "test" classes.
    """

    folds: int
    models: int
    steered_by: Literal["validation", "test"] = "validation"

    def __post_init__(self) -> None:
        check_count("split.folds", self.folds)
        check_count("split.models", self.models)
        if self.models > self.folds:
            raise ValueError(f"split.models must be at most split.folds {self.folds}, got {self.models}")
        if self.steered_by not in ("validation", "test"):
            raise ValueError(f"split.steered_by must be 'validation' or 'test', got {self.steered_by!r}")
        if (self.folds == 1) != (self.steered_by == "test"):
            raise ValueError(
                f"split.steered_by 'validation' needs at least 2 folds and 'test' exactly 1, got {self.folds} folds"
            )


@dataclass(frozen=True)
class Protocol:
    name: str
    title: str
    split: Split
    repeats: int  # of every model
    report: Report  # over collections of one model per fold; over repeats; or the best repeat, by what is monitored
    sizes: list[int] | dict[str, list[int]]  # of the embedding, the usual one first; by backbone where they differ
    backbones: list[str]  # the usual one first
    poolings: list[str]  # the baseline first
    training: Layer  # of every run
    concatenate: bool = False  # also measure the vectors of all models side by side
    tables: list[str] = field(default_factory=list)  # of published numbers to print beside
    losses: dict[str, Layer] = field(default_factory=dict)  # by kind of loss ("pair", "proxy") and by name
    pooling: dict[str, Layer] = field(default_factory=dict)  # by name; also for poolings that are joined with it by a +
    methods: dict[str, Layer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_count("repeats", self.repeats)
        if self.report not in get_args(Report):
            raise ValueError(
                f"report must be one of {', '.join(get_args(Report))}, got {self.report!r}"
                f"{did_you_mean(str(self.report), get_args(Report))}"
            )
        for name in ("backbones", "poolings", "tables"):
            _check_words(name, getattr(self, name), empty=name == "tables")
        if not isinstance(self.concatenate, bool):
            raise TypeError(f"concatenate must be true or false, got {self.concatenate!r}")
        for backbone in self.backbones:
            for size in self.sizes_for(backbone):
                check_count("every one of sizes", size)
        check_layer("training", self.training, self.backbones, complete=True)
        parts = sorted({part for name in poolings.names() for part in name.split("+")})
        for section, known in (
            ("losses", [*KINDS, *objectives.names()]),
            ("pooling", parts),
            ("methods", list(METHODS)),
        ):
            layers = getattr(self, section)
            if not isinstance(layers, dict):
                raise TypeError(f"{section} must hold settings by {', '.join(known)}, got {layers!r}")
            for name, layer in layers.items():
                if name not in known:
                    hint = did_you_mean(str(name), known) or f"; there are: {', '.join(known)}"
                    raise ValueError(f"{section} has an unknown name {name!r}{hint}")
                check_layer(f"{section}.{name}", layer, self.backbones, complete=False)

    @property
    def runs(self) -> list[tuple[int, int]]:
        """(fold, repeat) of every model to train for one cell of the table."""
        return [(fold, repeat) for fold in range(self.split.models) for repeat in range(self.repeats)]

    @property
    def collections(self) -> list[tuple[tuple[int, int], ...]]:
        """The runs that are measured together: one per fold, in every combination of repeats.

        Four folds of three repeats make 81.
        """
        chosen = product(range(self.repeats), repeat=self.split.models)
        return [tuple(enumerate(repeats)) for repeats in chosen]

    def held_out(self, fold: int) -> int | None:
        """Which of ``split.folds`` ranges of classes a model does not train on; None if it trains on all."""
        return None if self.split.folds == 1 else self.split.folds - self.split.models + fold

    def sizes_for(self, backbone: str) -> list[int]:
        sizes = self.sizes
        if isinstance(sizes, dict):
            lacking = [name for name in self.backbones if name not in sizes]
            if lacking:
                raise ValueError(f"sizes are written out by backbone and lack {', '.join(lacking)}")
            sizes = sizes[backbone if backbone in sizes else self.backbones[0]]
        if not isinstance(sizes, list) or not sizes:
            raise TypeError(f"sizes must be a list of whole numbers, or such lists by backbone, got {self.sizes!r}")
        return sizes


def _check_words(name: str, words: Any, empty: bool) -> None:
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise TypeError(f"{name} must be a list of names, got {words!r}")
    if not words and not empty:
        raise ValueError(f"{name} must name at least one, got none")
