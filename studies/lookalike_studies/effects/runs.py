"""What the models of the study of effects are trained with, and how that differs from the papers' protocol.

Later goes before earlier: the protocol; for drawn pictures the small network of ``settings.yaml`` and what the
axis needs for them; for few points what the axis needs for few steps; the settings of the study; its ``set``.
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
SMALL = 64  # the largest embedding where only the ends of an axis are looked at
# What says nothing about the model: where it lies, by what machine; and what is said elsewhere: that it begins with
# single letters, and by the protocol's own keys which classes are held out.
UNSAID = {"data", "out", "resume", "seed", "strict", "check", "workers", "cache", "device", "devices", "nodes"}
UNSAID |= {"save_every", "log_every", "weights", "validation", "validation_order"}
NULLS = {"patience": "no end but the last step", "clip_norm": "no limit", "clip_value": "no limit", "dim": "none"}


def check_overrides(asked: Mapping[str, Any]) -> None:
    """Settings of ``lookalike train`` that no run could have."""
    for name in asked:
        if name not in names():
            raise ValueError(f"set: there is no setting {name!r}{did_you_mean(name, names())}")
    if "seed" in asked:
        raise ValueError("set: seed cannot be the same for all; seeds says how many models there are")
    Settings(**asked)


def rows_for(
    axis: Axis, settings: Effects, pictures: dict[str, Pictures], letters: str, made: Mapping[str, Any]
) -> Rows:
    """letters: the run that drawn pictures start from, "" for others.  made: ``of_drawn`` of the study's file."""
    which: Any = settings.points
    protocol = load_protocol(axis.protocol if settings.protocol == "axis" else settings.protocol)
    if settings.seeds is not None:
        protocol = with_seeds(protocol, -(-settings.seeds // protocol.split.models))
    overrides: dict[str, Any] = {}
    if letters:
        side = next(iter(pictures.values())).image(0).size[0]
        overrides |= {**made["set"], **axis.drawn, "size": side, "resize": side, "weights": letters}
    overrides |= {} if which == "all" else axis.quick
    overrides |= {} if settings.steps is None else {"steps": settings.steps}
    if settings.evaluate_every is not None:
        overrides["evaluate_every"] = min(
            settings.evaluate_every, overrides.get("evaluate_every", settings.evaluate_every)
        )
    overrides |= parse_settings(split_top_level(settings.set, ";"))
    if "dim" in overrides and which == "ends":
        overrides["dim"] = min(overrides["dim"], SMALL)
    rows = rows_of(axis, axis.points(which), protocol, pictures, overrides, made["pooling"] if letters else {})
    rows.planned(axis)
    rows.cells = {
        number: [_with_seed(cell, cell.settings.seed + settings.first_seed) for cell in cells[: settings.seeds]]
        for number, cells in rows.cells.items()
    }
    return rows


def _with_seed(cell: Cell, seed: int) -> Cell:
    return replace(cell, settings=replace(cell.settings, seed=seed))


def check_weights(settings: Settings) -> None:
    """Before anything is trained: whether the protocol's network can be had."""
    try:
        create_backbone(settings.backbone, weights=settings.weights)
    except ValueError as missing:
        raise ValueError(
            f"{missing} (--set \"set='weights=FILE'\"); or --set protocol=quick, which trains the head of a network "
            "whose weights do come with one"
        ) from missing


def single_letters(source: str, made: Mapping[str, Any], steps: int) -> tuple[Cell, Pictures]:
    """The run that learns single letters of the training classes of ``source``, and its pictures."""
    of = dict(pairs(source))
    of |= {"cells": "1", "size": str(int(of.get("size", "64")) // int(of.get("cells", "2")))}
    alone = f"{DRAWN}({', '.join(f'{name}={each}' for name, each in of.items())})"
    pictures = with_test_classes(data.load(alone))
    own = Settings(
        data=alone,
        **{name: made[name] for name in ("backbone", "freeze_backbone", "crop", "flip", "batch_size", "lr", "workers")},
        weights="none",
        size=int(of["size"]),
        loss="proxy-nca++",
        pooling="average",
        schedule="cosine",
        proxy_lr=10.0,
        warm_up=0,
        steps=steps,
        evaluate_every=steps,
        validation=0.2,
    )
    cell = Cell("letters", alone, Choice(own.loss), Choice("average"), (), 0, 0, own, fingerprint_of(pictures))
    return cell, pictures


def pairs(source: str) -> list[tuple[str, str]]:
    """
    >>> pairs("glyphs(size=32, cells=1)")
    [('size', '32'), ('cells', '1')]
    """
    inside = source.removeprefix(DRAWN).strip().removeprefix("(").removesuffix(")")
    return [
        (name.strip(), each.strip())
        for name, _, each in (piece.partition("=") for piece in split_top_level(inside, ","))
    ]


def differences(
    along: Mapping[str, Axis], rows: Mapping[str, Rows], pictures: dict[str, Pictures], which: Which
) -> dict[str, Differences]:
    """Of the models from those that the papers' protocol makes of the same points; axes that differ alike together."""
    found: list[tuple[str, Differences, list[str]]] = []
    for name, axis in along.items():
        kept = rows[name].planned(axis).protocol
        said = f"protocol {kept.name}" + (f", the papers' is {axis.protocol}" if kept.name != axis.protocol else "")
        own = _differences(axis, rows[name], pictures, which)
        alike = next((names for other, each, names in found if (other, each) == (said, own)), None)
        if alike is None:
            found.append((said, own, [name]))
        else:
            alike.append(name)
    return {f"{', '.join(names)} ({said})": own for said, own, names in found if own}


def _differences(axis: Axis, rows: Rows, pictures: dict[str, Pictures], which: Which) -> Differences:
    """By the first point of each series; where series differ, "this or that"."""
    points = axis.points(which)
    firsts = [next(i for i, point in enumerate(points) if point.series == series.name) for series in axis.series]
    protocol = load_protocol(axis.protocol)
    papers = rows_of(axis, [points[i] for i in firsts], protocol, pictures, {}, {})
    values: dict[str, tuple[list[Any], list[Any]]] = {}
    for place, i in enumerate(firsts):
        if not (papers.cells[place] and rows.cells[i]):
            continue
        theirs = _flat(protocol, papers.cells[place])
        ours = _flat(rows.planned(axis).protocol, rows.cells[i])
        for name in {**theirs, **ours}:
            for each, list_of in zip((theirs, ours), values.setdefault(name, ([], [])), strict=True):
                if (one := each.get(name, "none")) not in list_of:
                    list_of.append(one)
    joined = {name: (_joined(theirs), _joined(ours)) for name, (theirs, ours) in values.items()}
    return {name: both for name, both in joined.items() if both[0] != both[1]}


def _flat(protocol: Protocol, cells: Sequence[Cell]) -> dict[str, Any]:
    """What is held out, how many models a point has, then their settings, those of the pooling and the like by dots."""
    split, settings = protocol.split, cells[0].settings
    flat: dict[str, Any] = {"folds": split.folds, "steered_by": split.steered_by, "models of a point": len(cells)}
    for entry in fields(settings):
        each = getattr(settings, entry.name)
        if entry.name in UNSAID:
            continue
        if isinstance(each, dict):
            flat |= {f"{entry.name}.{inner}": one for inner, one in each.items()}
        else:
            flat[entry.name] = NULLS.get(entry.name, "decided at the start") if each is None else each
    return flat


def _joined(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else " or ".join(map(str, values))
