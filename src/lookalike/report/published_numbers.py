"""Published numbers for a row of ours."""

import json
from pathlib import Path
from typing import Any, Literal

from lookalike.experiments.layers import VARIANTS
from lookalike.experiments.protocol import load_protocol, settings_for
from lookalike.experiments.published import THESIS, Published, published
from lookalike.experiments.rows import Row

NONE = "no published number"
SIZES = ("memory", "ccp_proxies", "centres_per_class")
UNTIL_IT_ENDS = "until patience ends it"  # in all of the papers' protocols
TRAINED_WITH = ("backbone", "size", "dim", "batch_size", "steps")
TOLD = {"zero-shot": "zero_shot", "memory": "memory", "ccp": "ccp"}  # methods that the tables have, by their keys there


def beside(row: Row, metric: str, size: int) -> tuple[Published, ...]:
    """What the thesis has for this loss, pooling and methods, under the same protocol and in the same size.

    Its "+GSP" is with the zero-shot loss, so that GSP alone has no number, except where a table takes the two apart.
    """
    methods = {method.name for method in row.about.methods}
    data_set = data_set_of(row)
    if (
        data_set is None
        or methods - set(TOLD)
        or any(choice.settings for choice in (row.about.loss, row.about.pooling, *row.about.methods))
    ):
        return ()
    keys: dict[str, Any] = {key: method in methods for method, key in TOLD.items()}
    found = published(
        data_set=data_set,
        loss=row.about.loss.name,
        pooling=row.about.pooling.name,
        size=size,
        protocol=row.about.protocol,
        metric=metric,
        reported_by=THESIS,
        settings={},
        **keys,
    )
    variants = variants_of(row, data_set)
    alike = [each for each in found or () if each.variant not in VARIANTS or each.variant in variants]
    different = {(each.mean, each.backbone): each for each in reversed(alike)}  # of repetitions, the first
    own = backbone_of(row)
    same = [each for each in different.values() if each.backbone == own]
    return tuple(reversed(same or list(different.values())))


def variants_of(row: Row, data_set: str) -> set[str]:
    """Those of S and L whose sizes of memory, CCP and SoftTriple the row has; both, where it has none of these."""
    own = settings_of(row)
    found: set[str] = set()
    for variant in VARIANTS:
        asked = protocol_of(row, data_set, variant)
        if asked and all(asked[name] == own[name] for name in SIZES if name in asked and name in own):
            found.add(variant)
    return found


def unlike(row: Row) -> list[str]:
    """In what the row was trained otherwise than its protocol says, and so than the published numbers."""
    own, theirs = settings_of(row), protocol_of(row, data_set_of(row) or "", "L")
    return [
        f"{name} {own[name]} (theirs: {UNTIL_IT_ENDS if name == 'steps' else theirs[name]})"
        for name in TRAINED_WITH
        if own.get(name) is not None and theirs.get(name) is not None and own[name] != theirs[name]
    ]


def settings_of(row: Row) -> dict[str, Any]:
    """Of its models; those of the loss beside the others."""
    own = row.results[0].settings if row.results else {}
    return {**own, **own.get("loss_settings", {})}


def protocol_of(row: Row, data_set: str, variant: Literal["S", "L"]) -> dict[str, Any]:
    """The same as the row's protocol has it; {} where that is a file of one's own."""
    try:
        values = settings_for(
            load_protocol(row.about.protocol),
            data_set=data_set,
            loss=row.about.loss.name,
            pooling=row.about.pooling.name,
            methods=[method.name for method in row.about.methods],
            variant=variant,
        )
    except ValueError:
        return {}
    return {**values, **values.get("loss_settings", {})}


def in_words(found: tuple[Published, ...]) -> str:
    return "; ".join(f"{each} (Table {each.table})" for each in found) or NONE


def explained(found: tuple[Published, ...], row: Row) -> str:
    """What is to be known about these numbers: what the table calls the row, its backbone, doubts."""
    own = backbone_of(row)
    pieces = []
    for each in found:
        other = f", with {each.backbone} (ours: {own})" if own and each.backbone and own != each.backbone else ""
        note = f"; {each.note}" if each.note else ""
        pieces.append(f"{each.method} in Table {each.table}{other}{note}")
    return "; ".join(pieces)


def backbone_of(row: Row) -> str | None:
    return next((each.settings["backbone"] for each in row.results if "backbone" in each.settings), None)


def data_set_of(row: Row) -> str | None:
    """The data set as the papers call it: by the name that was typed, or by what the run found there."""
    from lookalike.data import datasets as benchmarks

    names = [row.about.data.partition(":")[0], *(_name_of_data(each.folder) for each in row.results[:1])]
    known = (benchmarks.lookup(name) for name in names)
    return next((each.name for each in known if each is not None), None)


def _name_of_data(folder: Path) -> str:
    try:
        return str(json.loads((folder / "run" / "data.json").read_text(encoding="utf-8"))["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
