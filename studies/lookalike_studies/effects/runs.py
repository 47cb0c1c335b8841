"""Settings of the models of the study of effects, and how they differ from the papers' protocol.

Later settings override earlier ones: the protocol; for drawn pictures the small network of ``settings.yaml`` and the
``drawn`` settings of the axis; for few points its ``quick`` settings; the settings of the study; its ``set``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from lookalike import data
from lookalike._util.suggestions import did_you_mean
from lookalike.experiments.cells import Cell
from lookalike.experiments.choices import Choice, parse_settings, split_top_level
from lookalike.experiments.plan import with_seeds
from lookalike.experiments.protocol import Protocol, load_protocol
from lookalike.experiments.splits import fingerprint_of, with_test_classes
from lookalike.models import create_backbone
from lookalike.training.settings import Settings, names
from lookalike_studies.effects.axis import Axis, Rows, Which, rows_of
from lookalike_studies.framework.study import Differences

if TYPE_CHECKING:
    from lookalike.data.pictures import Pictures
    from lookalike_studies.effects.study import Effects

DRAWN = "glyphs"
SMALL = 64  # largest embedding if only the ends of an axis are trained
# Not compared with the papers: settings of the machine, and what the notes or the protocol's own keys tell.
NOT_COMPARED = {"data", "out", "resume", "seed", "strict", "check", "workers", "cache", "device", "devices", "nodes"}
NOT_COMPARED |= {"save_every", "log_every", "weights", "validation", "validation_order"}
NULLS = {"patience": "no end but the last step", "clip_norm": "no limit", "clip_value": "no limit", "dim": "none"}


def check_overrides(overrides: Mapping[str, Any]) -> None:
    """Refuse settings of ``lookalike train`` that no run can have."""
    for name in overrides:
        if name not in names():
            raise ValueError(f"set: there is no setting {name!r}{did_you_mean(name, names())}")
    if "seed" in overrides:
        raise ValueError("set: seed cannot be the same for all models; use seeds and first_seed")
    Settings(**overrides)


def rows_for(
    axis: Axis, settings: Effects, pictures: dict[str, Pictures], letters: str, of_drawn: Mapping[str, Any]
) -> Rows:
    """Plan the models of an axis; an error if no point can be trained.

    ``letters`` is the run that drawn pictures start from, "" for other pictures; ``of_drawn`` is from
    ``settings.yaml``.
    """
    name = settings.protocol
    if name == "axis":
        name = axis.protocol
    protocol = load_protocol(name)
    if settings.seeds is not None:
        protocol = with_seeds(protocol, -(-settings.seeds // protocol.split.models))
    overrides: dict[str, Any] = {}
    of_pooling: dict[str, Any] = {}
    if letters:
        of_pooling = of_drawn["pooling"]
        side = next(iter(pictures.values())).image(0).size[0]
        overrides |= {**of_drawn["set"], **axis.drawn, "size": side, "resize": side, "weights": letters}
    if settings.points != "all":
        overrides |= axis.quick
    if settings.steps is not None:
        overrides["steps"] = settings.steps
    if settings.evaluate_every is not None:
        every = overrides.get("evaluate_every", settings.evaluate_every)
        overrides["evaluate_every"] = min(settings.evaluate_every, every)
    overrides |= parse_settings(split_top_level(settings.set, ";"))
    if "dim" in overrides and settings.points == "ends":
        overrides["dim"] = min(overrides["dim"], SMALL)
    rows = rows_of(axis, axis.points(settings.points), protocol, pictures, overrides, of_pooling)
    rows.planned(axis)
    for number, cells in rows.cells.items():
        rows.cells[number] = [_with_later_seed(cell, settings.first_seed) for cell in cells[: settings.seeds]]
    return rows


def _with_later_seed(cell: Cell, later: int) -> Cell:
    return replace(cell, settings=replace(cell.settings, seed=cell.settings.seed + later))


def check_weights(settings: Settings) -> None:
    """Check before any training that the weights of the backbone are available."""
    try:
        create_backbone(settings.backbone, weights=settings.weights)
    except ValueError as missing:
        raise ValueError(
            f"{missing} (--set \"set='weights=FILE'\"); or --set protocol=quick, which trains the head of a network "
            "that comes with weights"
        ) from missing


def single_letters(source: str, of_drawn: Mapping[str, Any], steps: int) -> tuple[Cell, Pictures]:
    """Plan the run that learns single letters of the training classes of ``source``; return it and its pictures."""
    arguments = parse_arguments(source)
    side = int(arguments.get("size", "64")) // int(arguments.get("cells", "2"))
    arguments |= {"cells": "1", "size": str(side)}
    alone = f"{DRAWN}({', '.join(f'{name}={value}' for name, value in arguments.items())})"
    pictures = with_test_classes(data.load(alone))
    shared = ("backbone", "freeze_backbone", "crop", "flip", "batch_size", "lr", "workers")
    settings = Settings(
        data=alone,
        **{name: of_drawn[name] for name in shared},
        weights="none",
        size=side,
        loss="proxy-nca++",
        pooling="average",
        schedule="cosine",
        proxy_lr=10.0,
        warm_up=0,
        steps=steps,
        evaluate_every=steps,
        validation=0.2,
    )
    loss, pooling = Choice(settings.loss), Choice("average")
    return Cell("letters", alone, loss, pooling, (), 0, 0, settings, fingerprint_of(pictures)), pictures


def parse_arguments(source: str) -> dict[str, str]:
    """Parse the arguments of drawn pictures.

    >>> parse_arguments("glyphs(size=32, cells = 1)")
    {'size': '32', 'cells': '1'}
    """
    inside = source.removeprefix(DRAWN).strip().removeprefix("(").removesuffix(")")
    arguments = {}
    for piece in split_top_level(inside, ","):
        name, _, value = piece.partition("=")
        arguments[name.strip()] = value.strip()
    return arguments


def differences(
    chosen: Mapping[str, Axis], rows: Mapping[str, Rows], pictures: dict[str, Pictures], which: Which
) -> dict[str, Differences]:
    """Compare the models with those of the papers' protocol.

    Returns differing settings by a title that lists the axes; axes with the same differences share one.
    """
    groups: list[tuple[str, Differences, list[str]]] = []
    for name, axis in chosen.items():
        protocol = rows[name].planned(axis).protocol.name
        title = f"protocol {protocol}"
        if protocol != axis.protocol:
            title += f", the papers' is {axis.protocol}"
        differing = _differences(axis, rows[name], pictures, which)
        for other_title, other, members in groups:
            if (other_title, other) == (title, differing):
                members.append(name)
                break
        else:
            groups.append((title, differing, [name]))
    return {f"{', '.join(members)} ({title})": differing for title, differing, members in groups if differing}


def _differences(axis: Axis, rows: Rows, pictures: dict[str, Pictures], which: Which) -> Differences:
    """Compare the first point of each series; where series differ, both values are given."""
    points = axis.points(which)
    firsts: dict[str, int] = {}
    for number, point in enumerate(points):
        firsts.setdefault(point.series, number)
    protocol = load_protocol(axis.protocol)
    papers = rows_of(axis, [points[number] for number in firsts.values()], protocol, pictures, {}, {})
    theirs: dict[str, list[Any]] = {}
    ours: dict[str, list[Any]] = {}
    for position, number in enumerate(firsts.values()):
        if papers.cells[position] and rows.cells[number]:
            one = _flat(protocol, papers.cells[position])
            other = _flat(rows.planned(axis).protocol, rows.cells[number])
            for name in {**one, **other}:
                theirs.setdefault(name, []).append(one.get(name, "none"))
                ours.setdefault(name, []).append(other.get(name, "none"))
    differing = {}
    for name in theirs:
        papers_value, value = _join(theirs[name]), _join(ours[name])
        if papers_value != value:
            differing[name] = (papers_value, value)
    return differing


def _flat(protocol: Protocol, cells: Sequence[Cell]) -> dict[str, Any]:
    """Split, number of models and settings; nested settings by dots."""
    split, settings = protocol.split, cells[0].settings
    flat: dict[str, Any] = {"folds": split.folds, "steered_by": split.steered_by, "models of a point": len(cells)}
    for entry in fields(settings):
        value = getattr(settings, entry.name)
        if entry.name in NOT_COMPARED:
            continue
        if isinstance(value, dict):
            flat |= {f"{entry.name}.{inner}": inner_value for inner, inner_value in value.items()}
        elif value is None:
            flat[entry.name] = NULLS.get(entry.name, "decided at the start")
        else:
            flat[entry.name] = value
    return flat


def _join(values: list[Any]) -> Any:
    """The only value, or all different ones in words."""
    different: list[Any] = []
    for value in values:
        if value not in different:
            different.append(value)
    if len(different) == 1:
        return different[0]
    return " or ".join(map(str, different))
