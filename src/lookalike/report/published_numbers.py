"""Finds the published numbers for a row, and the settings in which the row differs from them."""

from pathlib import Path
from typing import Any, Literal

from lookalike._util.untrusted import LARGEST_LIST, read_json
from lookalike.data import datasets
from lookalike.experiments.layers import VARIANTS
from lookalike.experiments.protocol import load_protocol, settings_for
from lookalike.experiments.published import THESIS, Published, published
from lookalike.experiments.rows import Row

NONE = "no published number"
# Settings whose value depends on the variant S or L.
VARIANT_SETTINGS = ("memory", "ccp_proxies", "centres_per_class")
# Settings that are compared with those of the protocol.
COMPARED_SETTINGS = ("backbone", "size", "dim", "batch_size", "steps")
UNTIL_PATIENCE_ENDS = "until patience ends it"  # the steps in all of the papers' protocols
# Methods that the published tables have, with the name of their key there.
PUBLISHED_METHODS = {"zero-shot": "zero_shot", "memory": "memory", "ccp": "ccp"}


def find_published(row: Row, metric: str, size: int) -> tuple[Published, ...]:
    """Find the numbers of the thesis for the loss, pooling and methods of a row.

    The thesis' "+GSP" includes the zero-shot loss. So GSP alone has a number only where a table separates the two.

    Args:
        row: of a benchmark.
        metric: such as "MAP@R".
        size: of the embedding.

    Returns:
        Numbers of the same protocol and size; those of the row's backbone if there are any. Repetitions are left out.
    """
    cell = row.cell
    data_set = _data_set(row)
    methods = {method.name for method in cell.methods}
    has_own_settings = any(choice.settings for choice in (cell.loss, cell.pooling, *cell.methods))
    if data_set is None or has_own_settings or not methods.issubset(PUBLISHED_METHODS):
        return ()
    method_keys: dict[str, Any] = {key: name in methods for name, key in PUBLISHED_METHODS.items()}
    numbers = published(
        data_set=data_set,
        loss=cell.loss.name,
        pooling=cell.pooling.name,
        size=size,
        protocol=cell.protocol,
        metric=metric,
        reported_by=THESIS,
        settings={},
        **method_keys,
    )
    variants = _variants(row, data_set)
    distinct: dict[tuple[float, str], Published] = {}
    for number in numbers or ():
        if number.variant not in VARIANTS or number.variant in variants:
            distinct.setdefault((number.mean, number.backbone), number)
    backbone = _backbone(row)
    same_backbone = [number for number in distinct.values() if number.backbone == backbone]
    return tuple(same_backbone or distinct.values())


def describe_published(numbers: tuple[Published, ...]) -> str:
    """The numbers as one text, each with its table."""
    texts = [f"{number} (Table {number.table})" for number in numbers]
    return "; ".join(texts) or NONE


def explain_published(numbers: tuple[Published, ...], row: Row) -> str:
    """What the table calls the row, its backbone if it differs, and doubts about the number."""
    backbone = _backbone(row)
    texts = []
    for number in numbers:
        text = f"{number.method} in Table {number.table}"
        if backbone and number.backbone and backbone != number.backbone:
            text += f", with {number.backbone} (ours: {backbone})"
        if number.note:
            text += f"; {number.note}"
        texts.append(text)
    return "; ".join(texts)


def differences_from_protocol(row: Row) -> list[str]:
    """Settings in which the row was trained differently from its protocol, and so from the published numbers."""
    own_settings = _settings(row)
    protocol_settings = _protocol_settings(row, _data_set(row) or "", "L")
    differences = []
    for name in COMPARED_SETTINGS:
        value, expected = own_settings.get(name), protocol_settings.get(name)
        if value is None or expected is None or value == expected:
            continue
        if name == "steps":
            expected = UNTIL_PATIENCE_ENDS
        differences.append(f"{name} {value} (theirs: {expected})")
    return differences


def _variants(row: Row, data_set: str) -> set[str]:
    """The variants S and L whose settings the row has; both if none of its settings depends on the variant."""
    own_settings = _settings(row)
    variants: set[str] = set()
    for variant in VARIANTS:
        expected = _protocol_settings(row, data_set, variant)
        compared = [name for name in VARIANT_SETTINGS if name in expected and name in own_settings]
        if expected and all(expected[name] == own_settings[name] for name in compared):
            variants.add(variant)
    return variants


def _settings(row: Row) -> dict[str, Any]:
    """Settings of the row's first model, with those of its loss on the same level."""
    if not row.results:
        return {}
    settings = row.results[0].settings
    return {**settings, **settings.get("loss_settings", {})}


def _protocol_settings(row: Row, data_set: str, variant: Literal["S", "L"]) -> dict[str, Any]:
    """The same as the row's protocol has them; {} if that is a file of the user."""
    cell = row.cell
    try:
        settings = settings_for(
            load_protocol(cell.protocol),
            data_set=data_set,
            loss=cell.loss.name,
            pooling=cell.pooling.name,
            methods=[method.name for method in cell.methods],
            variant=variant,
        )
    except ValueError:
        return {}
    return {**settings, **settings.get("loss_settings", {})}


def _backbone(row: Row) -> str | None:
    for result in row.results:
        if "backbone" in result.settings:
            return str(result.settings["backbone"])
    return None


def _data_set(row: Row) -> str | None:
    """The data set as the papers call it: by the name that was typed, or by what the run found there."""
    names = [row.cell.data.partition(":")[0]]
    if row.results:
        names.append(_name_in_run(row.results[0].folder))
    for name in names:
        data_set = datasets.lookup(name)
        if data_set is not None:
            return data_set.name
    return None


def _name_in_run(folder: Path) -> str:
    try:
        return str(read_json(folder / "run" / "data.json", LARGEST_LIST)["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
