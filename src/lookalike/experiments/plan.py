"""The plan of a benchmark: every combination of data, loss, pooling and methods, with every fold and repeat."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from lookalike import data, objectives
from lookalike.data.pictures import Pictures
from lookalike.experiments.cells import Cell
from lookalike.experiments.choices import Choice, check_names, parse_choices, split_top_level
from lookalike.experiments.layers import merge
from lookalike.experiments.protocol import METHODS, Protocol, settings_for
from lookalike.experiments.requirements import check_run
from lookalike.experiments.splits import fingerprint_of, steered_by_test, with_fold, with_test_classes
from lookalike.training.settings import Settings, names

ALIASES = {"xbm": "memory"}
LOSS_ALIASES = ("c1", "c2", "ms")
# Names of a method's settings among those of a run.
METHOD_SETTINGS = {
    "zero-shot": {"weight": "zero_shot"},
    "memory": {"batches": "memory", "start": "memory_start"},
    "centres": {"weight": "centres"},
    "ccp": {},
    "libc": {"weight": "libc", "message_passing": "message_passing"},
}
# Settings of a run that may be given in the brackets of a loss or pooling.
RUN_SETTINGS = {"loss_settings": ("message_passing",), "pooling_settings": ("dim",)}
# Where a method's other settings go; those of other methods are called method_name.
NESTED_SETTINGS = {"zero-shot": "zero_shot_settings", "centres": "centres_settings", "libc": "libc_settings"}


@dataclass
class Plan:
    """The cells of a benchmark.

    Attributes:
        impossible: combinations that cannot be trained, with the reason.
        parts: pictures with their splits, by data and fold.
    """

    protocol: Protocol
    cells: list[Cell]
    impossible: list[tuple[str, str]]
    parts: dict[tuple[str, int], Pictures]

    @property
    def deviations(self) -> dict[str, str]:
        """Where the cells depart from the printed text of their protocol, and why."""
        return self.protocol.deviations_of(vars(cell.settings) for cell in self.cells)

    def pictures_of(self, cell: Cell) -> Pictures:
        """The pictures of a cell with the splits of its fold."""
        return self.parts[cell.data, cell.fold]


def parse_methods(text: str) -> list[tuple[Choice, ...]]:
    """Parse ``none,xbm+zero-shot,centres(weight=0.1)`` into the methods that are added to the loss, case by case.

    Raises:
        ValueError: a method does not exist.
    """
    cases = []
    for case in split_top_level(text, ","):
        methods = []
        for piece in split_top_level(case, "+"):
            name, bracket, settings = piece.partition("(")
            if piece != "none":
                methods += parse_choices(f"{ALIASES.get(name, name)}{bracket}{settings}", METHODS, "method")
        methods.sort(key=lambda choice: METHODS.index(choice.name))
        cases.append(tuple(methods))
    return list(dict.fromkeys(cases)) or [()]


def make_plan(
    protocol: Protocol,
    sources: dict[str, Pictures],
    losses: Sequence[Choice],
    pooling_choices: Sequence[Choice],
    methods: Sequence[tuple[Choice, ...]] = ((),),
    *,
    variant: str = "L",
    overrides: dict[str, Any] | None = None,
) -> Plan:
    """Plan every combination of data, loss, pooling and methods.

    Args:
        protocol: says which folds, repeats and settings a combination has.
        sources: pictures by the name of their data, as ``load_sources`` gives them.
        losses: to combine.
        pooling_choices: to combine.
        methods: cases to combine, each with the methods that are added to the loss.
        variant: "S" or "L".
        overrides: settings of ``lookalike train`` that override those of the protocol.

    Raises:
        ValueError: an override does not exist.
    """
    overrides = overrides or {}
    _check_overrides(overrides)
    parts, fingerprints = {}, {}
    for source, pictures in sources.items():
        for fold in range(protocol.split.models):
            parts[source, fold] = split_for_fold(pictures, protocol, fold)
            fingerprints[source, fold] = fingerprint_of(parts[source, fold])
    plan = Plan(protocol, [], [], parts)
    titles: dict[str, str] = {}  # by the keys of their cells
    for source, loss, pooling, case in product(sources, losses, pooling_choices, methods):
        title = " + ".join(map(str, (loss, pooling, *case)))
        cells = []
        try:
            for fold, repeat in protocol.runs:
                settings = _run_settings(
                    protocol, sources[source], loss, pooling, case, fold, repeat, variant, overrides
                )
                settings = replace(settings, data=source)
                fingerprint = fingerprints[source, fold]
                cells.append(Cell(protocol.name, source, loss, pooling, case, fold, repeat, settings, fingerprint))
            check_run(cells[0].settings, parts[source, 0])
        except (ValueError, TypeError) as reason:
            plan.impossible.append((f"{title} on {source}", str(reason)))
            continue
        if cells[0].key in titles:
            plan.impossible.append((f"{title} on {source}", f"its settings equal those of {titles[cells[0].key]}"))
            continue
        for cell in cells:
            titles[cell.key] = title
        plan.cells += cells
    return plan


def load_sources(names: Sequence[str], *, check: bool = True, progress: bool = True) -> dict[str, Pictures]:
    """Load data sets and give each of them test classes.

    Args:
        names: of data sets, folders or files.
        check: decode every picture once.
        progress: show a progress bar.

    Returns:
        Pictures by name.
    """
    sources = {}
    for name in names:
        sources[name] = with_test_classes(data.load(name, check=check, progress=progress))
    return sources


def loss_names() -> list[str]:
    """All losses, with the papers' short names."""
    return [*objectives.names(), *LOSS_ALIASES]


def split_for_fold(pictures: Pictures, protocol: Protocol, fold: int) -> Pictures:
    """The pictures with the validation classes of a fold."""
    if protocol.split.steered_by == "nothing":
        return pictures
    held_out = protocol.held_out(fold)
    if held_out is None:
        return steered_by_test(pictures)
    return with_fold(pictures, held_out, protocol.split.folds)


def with_seeds(protocol: Protocol, seeds: int | None) -> Protocol:
    """The protocol with another number of repeats; None changes nothing."""
    return protocol if seeds is None else replace(protocol, repeats=seeds)


def _check_overrides(overrides: dict[str, Any]) -> None:
    check_names("there is no setting", overrides, names())
    if "seed" in overrides:
        raise ValueError("seed cannot be set: every repeat has its own, and --seeds says how many there are")


def _run_settings(
    protocol: Protocol,
    pictures: Pictures,
    loss: Choice,
    pooling: Choice,
    methods: tuple[Choice, ...],
    fold: int,
    repeat: int,
    variant: str,
    overrides: dict[str, Any],
) -> Settings:
    protocol_methods = []
    for method in methods:
        if method.name in protocol.methods:
            protocol_methods.append(method.name)
        elif "weight" not in method.settings:
            raise ValueError(
                f"the protocol {protocol.name} has no settings for {method.name}: write {method.name}(weight=0.1)"
            )
    values = settings_for(
        protocol,
        data_set=pictures.name,
        loss=loss.name,
        pooling=pooling.name,
        methods=protocol_methods,
        fold=fold,
        repeat=repeat,
        variant=variant,  # type: ignore[arg-type]  # checked there
        backbone=overrides.get("backbone"),
        classes=len(pictures.split("train").classes),
        evaluate_every=overrides.get("evaluate_every"),
    )
    for choice, target in ((loss, "loss_settings"), (pooling, "pooling_settings")):
        values = merge(values, _choice_settings(choice, target))
    for method in methods:
        values = merge(values, _method_settings(method))
    return Settings(**merge(values, overrides))


def _choice_settings(choice: Choice, target: str) -> dict[str, Any]:
    """The settings of a loss or pooling, without those that belong to the run itself."""
    settings = dict(choice.settings)
    values: dict[str, Any] = {target: settings}
    for name in RUN_SETTINGS[target]:
        if name in settings:
            values[name] = settings.pop(name)
    return values


def _method_settings(method: Choice) -> dict[str, Any]:
    """The settings of a run that the settings of a method stand for."""
    values: dict[str, Any] = {}
    for name, value in method.settings.items():
        if name in METHOD_SETTINGS[method.name]:
            values[METHOD_SETTINGS[method.name][name]] = value
        elif method.name in NESTED_SETTINGS:
            values.setdefault(NESTED_SETTINGS[method.name], {})[name] = value
        else:
            values[f"{method.name}_{name}"] = value
    return values
