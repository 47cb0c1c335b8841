"""What a table consists of: every combination of data, loss, pooling and methods, with every fold and repeat."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

from lookalike import data, objectives
from lookalike import pooling as poolings
from lookalike._util.suggestions import did_you_mean
from lookalike.data.pictures import Pictures
from lookalike.experiments.cells import Cell
from lookalike.experiments.choices import Choice, parse_choices, split_top_level
from lookalike.experiments.protocol import METHODS, Protocol, settings_for
from lookalike.experiments.splits import fingerprint_of, steered_by_test, with_fold, with_test_classes
from lookalike.training.model import create_objective
from lookalike.training.settings import Settings

ALIASES = {"xbm": "memory", "none": ""}
# What a method's own settings are called among those of a run; the others go to its ``..._settings``.
OWN = {
    "zero-shot": {"weight": "zero_shot"},
    "memory": {"batches": "memory", "start": "memory_start"},
    "centres": {"weight": "centres"},
    "ccp": {},
}
REST = {"zero-shot": "zero_shot_settings", "centres": "centres_settings"}
NESTED = ("loss_settings", "pooling_settings", "zero_shot_settings", "centres_settings")


@dataclass
class Plan:
    protocol: Protocol
    cells: list[Cell]
    impossible: list[tuple[str, str]]  # what was asked for and cannot be, and why
    parts: dict[tuple[str, int], Pictures]  # by data and fold, with their splits

    def pictures_of(self, cell: Cell) -> Pictures:
        return self.parts[cell.data, cell.fold]


def parse_methods(text: str) -> list[tuple[Choice, ...]]:
    """``none,xbm+zero-shot,centres(weight=0.1)`` -> what is added to the loss, case by case."""
    cases = []
    for case in split_top_level(text, ","):
        names = [ALIASES.get(piece, piece) for piece in split_top_level(case, "+")]
        names = [f"memory{name[3:]}" if name.startswith("xbm(") else name for name in names if name]
        found = [choice for name in names for choice in parse_choices(name, METHODS, "method")]
        cases.append(tuple(sorted(found, key=lambda choice: METHODS.index(choice.name))))
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
    """``sources``: pictures by the name of their data, as ``load_sources`` gives them.

    ``overrides`` are settings of ``lookalike train`` that go before those of the protocol.
    """
    overrides = dict(overrides or {})
    known = [entry.name for entry in fields(Settings)]
    for name in overrides:
        if name not in known:
            raise ValueError(f"there is no setting {name!r}{did_you_mean(name, known)}")
    if "seed" in overrides:
        raise ValueError(
            "seed cannot be the same for all: every repeat has its own, and --seeds says how many there are"
        )
    folds = range(protocol.split.models)
    parts = {(name, fold): divided(pictures, protocol, fold) for name, pictures in sources.items() for fold in folds}
    prints = {place: fingerprint_of(pictures) for place, pictures in parts.items()}
    plan = Plan(protocol, [], [], parts)
    titles: dict[str, str] = {}  # of rows, by the keys of their models
    for source, loss, pooling, case in product(sources, losses, pooling_choices, methods):
        try:
            runs = {
                run: _settings(protocol, sources[source], loss, pooling, case, run, variant, overrides)
                for run in protocol.runs
            }
            _refuse_impossible(next(iter(runs.values())), parts[source, 0])
        except (ValueError, TypeError) as reason:
            plan.impossible.append((f"{' + '.join(map(str, (loss, pooling, *case)))} on {source}", str(reason)))
            continue
        cells = [
            Cell(
                protocol.name,
                source,
                loss,
                pooling,
                case,
                fold,
                repeat,
                replace(settings, data=source),
                prints[source, fold],
            )
            for (fold, repeat), settings in runs.items()
        ]
        twin = titles.get(cells[0].key)
        if twin is not None:
            plan.impossible.append((f"{cells[0].title} on {source}", f"it has the very settings of {twin}"))
            continue
        titles |= {cell.key: cell.title for cell in cells}
        plan.cells += cells
    return plan


def load_sources(names: Sequence[str], *, check: bool = True, progress: bool = True) -> dict[str, Pictures]:
    """The pictures of each data set, checked once for all cells, with test classes."""
    return {name: with_test_classes(data.load(name, check=check, progress=progress)) for name in names}


def loss_names() -> list[str]:
    return [*objectives.names(), "c1", "c2", "ms"]


def pooling_names() -> list[str]:
    return poolings.names()


def divided(pictures: Pictures, protocol: Protocol, fold: int) -> Pictures:
    held_out = protocol.held_out(fold)
    if held_out is None:
        return steered_by_test(pictures)
    return with_fold(pictures, held_out, protocol.split.folds)


def _settings(
    protocol: Protocol,
    pictures: Pictures,
    loss: Choice,
    pooling: Choice,
    methods: tuple[Choice, ...],
    run: tuple[int, int],
    variant: str,
    overrides: dict[str, Any],
) -> Settings:
    untold = [method for method in methods if method.name not in protocol.methods]
    if untold and "weight" not in untold[0].settings:
        name = untold[0].name
        raise ValueError(f"the protocol {protocol.name} has no settings for {name}: write {name}(weight=0.1)")
    values = settings_for(
        protocol,
        data_set=pictures.name,
        loss=loss.name,
        pooling=pooling.name,
        methods=[method.name for method in methods if method not in untold],
        fold=run[0],
        repeat=run[1],
        variant=variant,  # type: ignore[arg-type]  # it is checked there
        backbone=overrides.get("backbone"),
        classes=len(pictures.split("train").classes),
    )
    values = _with(values, {"loss_settings": loss.settings, "pooling_settings": pooling.settings})
    for method in methods:
        values = _with(values, _as_settings(method))
    return Settings(**_with(values, overrides))


def _refuse_impossible(settings: Settings, parts: Pictures) -> None:
    classes = len(parts.split("train").classes)
    create_objective(settings, classes, settings.dim or 1, poolings.find(settings.pooling), validates=True)


def _as_settings(method: Choice) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in method.settings.items():
        if name in OWN[method.name]:
            values[OWN[method.name][name]] = value
        elif method.name in REST:
            values.setdefault(REST[method.name], {})[name] = value
        else:
            values[f"{method.name}_{name}"] = value
    return values


def _with(values: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """Both, ``more`` before ``values``; settings of settings are joined."""
    joined = {**values, **more}
    for name in NESTED:
        if name in values and name in more:
            joined[name] = {**values[name], **more[name]}
    return joined


def with_seeds(protocol: Protocol, seeds: int | None) -> Protocol:
    return protocol if seeds is None else replace(protocol, repeats=seeds)
