"""Finds the published numbers for a row, and the settings in which the row differs from them."""

from pathlib import Path
from typing import Any, Literal

from lookalike._util.untrusted import LARGEST_LIST, read_json
from lookalike.data import datasets
from lookalike.data.files import counted
from lookalike.experiments.layers import NESTED, VARIANTS
from lookalike.experiments.protocol import built_in_protocol, settings_for
from lookalike.experiments.published import THESIS, Published, published
from lookalike.experiments.results import NOT_IN_KEY
from lookalike.experiments.rows import Row
from lookalike.models import starts_random
from lookalike.models.known_weights import IMAGENET
from lookalike.training.settings import Settings
from lookalike.training.settings import names as settings_names

NONE = "no published number"
# Settings whose value depends on the variant S or L.
VARIANT_SETTINGS = ("memory", "ccp_proxies", "centres_per_class")
FIRST_SETTINGS = ("backbone", "size", "dim", "batch_size", "steps", "lr", "patience")  # named first if they differ
# Settings that are not compared: they change nothing, are compared otherwise, or follow from the protocol's split.
NOT_COMPARED = NOT_IN_KEY | {"seed", "weights", "preset", "validation", "validation_order"}
DERIVED_KEYS = ("normalise", "seed", "delay")  # keys of nested settings that follow from other settings
DEFAULTS = vars(Settings())
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


def has_published(row: Row) -> bool:
    """Whether a published number stands beside the row, for one model or for the joined ones."""
    return any(row.published.values()) or any(row.published_joined.values())


def differences_from_protocol(row: Row) -> list[str]:
    """Everything in which the row was made differently from its protocol, and so from the published numbers.

    Compared are all settings that change a result: with the protocol's, or with the defaults where it has none. Also
    the start of the backbone, the number of repeats and of test pictures.
    """
    if not row.results:
        return []
    data_set = _data_set(row) or ""
    variant: Literal["S", "L"] = "S" if _variants(row, data_set) == {"S"} else "L"
    expected = _protocol_settings(row, data_set, variant)
    if not expected:
        return []
    values = row.results[0].settings
    differences = []
    for name in (*FIRST_SETTINGS, *settings_names()):
        if name in values and name not in NOT_COMPARED:
            differences += _differences(name, values[name], expected.get(name, DEFAULTS.get(name)))
    differences += _starts(row)
    return list(dict.fromkeys([*differences, *_smaller_samples(row, data_set)]))


def _starts(row: Row) -> list[str]:
    """The starts of the backbone that are not the published one.

    Weights from a file are the published ones if their checksum was known when the model was trained.
    """
    differences = []
    for result in row.results:
        weights = str(result.settings.get("weights", "auto"))
        known = result.known_weights
        if starts_random(str(result.settings.get("backbone")), weights):
            differences.append(f"random weights (theirs: {IMAGENET})")
        elif weights in ("auto", "timm"):
            continue
        elif known is None:
            differences.append(f"weights from {Path(weights).name}, an unknown file (theirs: {IMAGENET})")
        elif known["trained_on"] != IMAGENET:
            differences.append(f"weights of {known['trained_on']} (theirs: {IMAGENET})")
    return differences


def _differences(name: str, value: Any, expected: Any) -> list[str]:
    """The differences of one setting; every key of settings such as loss_settings is compared on its own."""
    if name in NESTED:
        keys = dict(value or {})
        expected_keys = dict(expected or {})
        texts = []
        for key in {**expected_keys, **keys}:
            if key in DERIVED_KEYS and key not in expected_keys:
                continue
            if _plain(keys.get(key)) != _plain(expected_keys.get(key)):
                theirs = expected_keys.get(key, "the default")
                texts.append(f"{name}.{key} {keys.get(key, 'by default')} (theirs: {theirs})")
        return texts
    if expected is None or _plain(value) == _plain(expected):
        return []  # None: the run decides
    if name == "steps":
        expected = UNTIL_PATIENCE_ENDS
    return [f"{name} {'none' if value is None else value} (theirs: {expected})"]


def _plain(value: Any) -> Any:
    """A value as YAML returns it."""
    return list(value) if isinstance(value, tuple) else value


def _smaller_samples(row: Row, data_set: str) -> list[str]:
    """Repeats and test pictures, where there are fewer than the published numbers have."""
    differences = []
    protocol = built_in_protocol(row.cell.protocol)
    fewest = min(map(len, row.folds.values()))
    if protocol is not None and fewest < protocol.repeats:
        differences.append(f"{counted(fewest, 'repeat')} (theirs: {protocol.repeats})")
    spec = datasets.lookup(data_set)
    if spec is not None:
        test = row.results[0].test
        official = spec.sizes.get("query", spec.sizes["test"]).pictures
        queries = int(test.get("queries", official))
        if official not in (queries, queries + int(test.get("left_out", 0))):
            differences.append(f"{queries:,} test pictures (theirs: {official:,})")
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
    """The same as the row's protocol has them for its backbone and size; {} if that is a file of the user."""
    cell = row.cell
    protocol = built_in_protocol(cell.protocol)
    if protocol is None:
        return {}
    backbone = _backbone(row)
    if backbone not in protocol.backbones:
        backbone = protocol.backbones[0]
    size = row.results[0].settings.get("dim") if row.results else None
    if size not in protocol.sizes_for(backbone):
        size = None
    try:
        settings = settings_for(
            protocol,
            data_set=data_set,
            loss=cell.loss.name,
            pooling=cell.pooling.name,
            methods=[method.name for method in cell.methods],
            variant=variant,
            backbone=backbone,
            size=size,
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
