"""Protocols: how the numbers of a table are computed.

A protocol says which classes are held out, how often a model is trained, with which settings, and what is averaged. It
is a YAML file; those of the package are in ``protocols/`` and name the lines of the papers that they follow.

    protocol = load_protocol("fair")                  # or a file of your own
    for fold, repeat in protocol.runs:
        settings = settings_for(protocol, data_set="cub", loss="c2", pooling="gsp", fold=fold, repeat=repeat)
"""

from collections.abc import Sequence
from dataclasses import MISSING, fields
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Literal

import yaml

from lookalike import objectives
from lookalike._util.checks import check_count
from lookalike._util.suggestions import did_you_mean
from lookalike._util.untrusted import read_yaml
from lookalike.data import datasets
from lookalike.experiments.choices import check_names
from lookalike.experiments.layers import INTERVALS, KINDS, NESTED, VARIANTS, Context, merge, resolve, without_nulls
from lookalike.experiments.protocol_schema import METHODS, Protocol, Split
from lookalike.objectives import full_name
from lookalike.objectives.presets import DATA_SETS
from lookalike.training.settings import Settings

FILES = Path(__file__).parent / "protocols"
MANY_CLASSES = 1000  # a data set with more training classes has the settings of sop, any other one those of cub
LAYERED = ("losses", "pooling", "methods")  # keys that hold layers by name

__all__ = ["METHODS", "Protocol", "Split", "built_in_protocol", "column", "load_protocol", "names", "settings_for"]


def names() -> list[str]:
    """The protocols that come with the package."""
    return sorted(path.stem for path in FILES.glob("*.yaml"))


def load_protocol(name_or_path: str | Path) -> Protocol:
    """Load a protocol by its name, or from a YAML file.

    A file may begin with ``base: fair`` and then say only what is different.

    Raises:
        ValueError: there is no such protocol, or it has a wrong value.
        TypeError: a value has the wrong type.

    Examples:
        >>> load_protocol("tuning").split
        Split(folds=5, models=1, steered_by='validation')
    """
    path = _find(name_or_path, Path())
    try:
        values = _read(path, ())
        _require_keys("a protocol", values, Protocol)
        if not isinstance(values["split"], dict):
            raise TypeError(f"split must hold folds, models and steered_by, got {values['split']!r}")
        check_names("split has no key", values["split"], _keys(Split))
        _require_keys("split", values["split"], Split)
        values["split"] = Split(**values["split"])
        protocol = Protocol(**values)
        _check_all_settings(protocol)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{path}: {error}") from None
    return protocol


@cache
def built_in_protocol(name: str) -> Protocol | None:
    """A protocol of the package, loaded once; None for the name of a user's file, which may be gone by now."""
    if name not in names():
        return None
    return load_protocol(FILES / f"{name}.yaml")


def settings_for(
    protocol: Protocol,
    *,
    data_set: str,
    loss: str,
    pooling: str,
    methods: Sequence[str] = (),
    fold: int = 0,
    repeat: int = 0,
    size: int | None = None,
    variant: Literal["S", "L"] = "L",
    backbone: str | None = None,
    classes: int | None = None,
    evaluate_every: int | None = None,
) -> dict[str, Any]:
    """The settings of one run that the protocol decides.

    The protocol decides neither the held-out classes (``Protocol.held_out``) nor data, folder and hardware.

    Args:
        protocol: a loaded protocol.
        data_set: cub, cars, inshop or sop; any other has the settings of cub, or of sop if it has many classes.
        loss: name of the loss.
        pooling: name of the pooling.
        methods: of "zero-shot", "memory", "ccp" and "centres". "zero-shot" with average pooling is GSP that keeps all:
            the same vector, with attributes (thesis, Table 5.3).
        fold: from 0.
        repeat: from 0.
        size: of the embedding; None: the protocol's first. The size of all models joined stands for that of each.
        variant: "S" or "L", of memory, CCP and SoftTriple.
        backbone: None: the protocol's first.
        classes: number of training classes.
        evaluate_every: steps between evaluations instead of the protocol's; warm-up and delay of prototypes follow.

    Returns:
        Values for fields of ``Settings``, by name.

    Raises:
        ValueError: the protocol has no such run.
    """
    _check_run(protocol, methods, fold, repeat, variant)
    loss = full_name(loss)
    kind = "proxy" if objectives.training_hints(loss).per_class == 1 else "pair"
    backbone = backbone or protocol.backbones[0]
    keeps_all = "zero-shot" in methods and pooling == "average"
    if keeps_all:
        pooling = "gsp"
    context = Context(column(data_set, classes), kind, variant, backbone, tuple(protocol.backbones))
    settings = _merge_layers(protocol, context, loss, pooling, methods)
    intervals = settings.pop(INTERVALS, 0)
    if evaluate_every is not None:
        settings["evaluate_every"] = evaluate_every
    warm_up = 0
    if not settings.get("freeze_backbone"):
        warm_up = intervals * settings.get("evaluate_every", Settings.evaluate_every)
    pooling_settings = settings.setdefault("pooling_settings", {})
    if pooling_settings.get("init", "random") != "random":
        pooling_settings["delay"] = warm_up  # prototypes are chosen once the embedding layer has warmed up
    if keeps_all:
        pooling_settings["keep"] = 1.0
    if protocol.split.steered_by == "validation":
        settings["validation"] = 1 / protocol.split.folds
        settings["validation_order"] = "contiguous"
    elif protocol.split.steered_by == "nothing":
        settings["validation"] = 0.0
    settings["backbone"] = backbone
    settings["dim"] = _model_size(protocol, backbone, size)
    settings["pooling"] = pooling
    settings["loss"] = loss
    settings["warm_up"] = warm_up
    settings["seed"] = repeat * protocol.split.models + fold
    return settings


def column(data_set: str, classes: int | None = None) -> str:
    """The data set of the papers whose settings are used for a data set.

    Args:
        data_set: name of any data set.
        classes: number of its training classes.

    Examples:
        >>> column("cars196"), column("glyphs"), column("faces", classes=8000)
        ('cars', 'cub', 'sop')
    """
    entry = datasets.lookup(data_set)
    if entry is not None and entry.name in DATA_SETS:
        return entry.name
    if classes is None and entry is not None and "train" in entry.sizes:
        classes = entry.sizes["train"].classes
    return "sop" if (classes or 0) > MANY_CLASSES else "cub"


def _merge_layers(
    protocol: Protocol, context: Context, loss: str, pooling: str, methods: Sequence[str]
) -> dict[str, Any]:
    """The settings of all layers for a run; later layers win."""
    layers = [protocol.training, protocol.losses.get(context.kind, {}), protocol.losses.get(loss, {})]
    for method in METHODS:
        if method in methods:
            layers.append(protocol.methods[method])
    for name in pooling.split("+"):
        layers.append(protocol.pooling.get(name, {}))
    settings: dict[str, Any] = {}
    for layer in layers:
        settings = merge(settings, resolve(layer, context))
    return without_nulls(settings)


def _check_run(protocol: Protocol, methods: Sequence[str], fold: int, repeat: int, variant: str) -> None:
    if isinstance(methods, str):
        raise TypeError(f"methods must be a list of names, got {methods!r}")
    for method in methods:
        if method not in METHODS:
            hint = did_you_mean(str(method), METHODS) or f"; there are: {', '.join(METHODS)}"
            raise ValueError(f"there is no method {method!r}{hint}")
        if method not in protocol.methods:
            raise ValueError(f"the protocol {protocol.name} does not say how {method} is set: add it below 'methods'")
    for name, value, count in (("fold", fold, protocol.split.models), ("repeat", repeat, protocol.repeats)):
        check_count(name, value, least=0)
        if value >= count:
            raise ValueError(f"{name} must be below {count} in the protocol {protocol.name}, got {value}")
    if variant not in VARIANTS:
        raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, got {variant!r}")


def _model_size(protocol: Protocol, backbone: str, size: int | None) -> int:
    """The size of one model's embedding, also if ``size`` is that of all models joined."""
    sizes = protocol.sizes_for(backbone)
    if size is None:
        return sizes[0]
    model_sizes: dict[int, int] = {}
    if protocol.concatenate:
        model_sizes = {protocol.split.models * model_size: model_size for model_size in sizes}
    if size in model_sizes:
        return model_sizes[size]
    if size not in sizes:
        allowed = ", ".join(map(str, [*sizes, *model_sizes]))
        raise ValueError(f"size must be one of {allowed} in the protocol {protocol.name} with {backbone}, got {size}")
    return size


def _find(name_or_path: str | Path, folder: Path) -> Path:
    """A file, relative to ``folder``, or a protocol of the package."""
    path = folder / Path(name_or_path).expanduser()
    if path.is_file():
        return path
    name = str(name_or_path)
    if name in names():
        return FILES / f"{name}.yaml"
    hint = did_you_mean(name, names()) or f"; there are: {', '.join(names())}, or a file"
    raise ValueError(f"there is no protocol {name!r}{hint}")


def _read(path: Path, derived_from_it: tuple[Path, ...]) -> dict[str, Any]:
    """The values of a file, merged with those of its base."""
    if path.resolve() in derived_from_it:
        raise ValueError(f"{path} is its own base")
    try:
        values = read_yaml(path)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"it cannot be read as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ValueError(f"a protocol must hold settings by name, got {type(values).__name__}")
    base_name = values.pop("base", None)
    check_names("a protocol has no key", values, [*_keys(Protocol), "base"])
    if base_name is None:
        return values
    base = _read(_find(str(base_name), path.parent), (*derived_from_it, path.resolve()))
    for section in LAYERED:
        merged = dict(base.get(section, {}))
        for name, layer in _require_mapping(section, values.get(section, {})).items():
            merged[name] = merge(merged.get(name, {}), _require_mapping(f"{section}.{name}", layer))
        values[section] = merged
    values["deviations"] = _merge_deviations(base.get("deviations", {}), values.get("deviations", {}))
    values["training"] = merge(base.get("training", {}), _require_mapping("training", values.get("training", {})))
    return {**base, "name": path.stem, **values}


def _merge_deviations(base: Any, deviations: Any) -> Any:
    """Those of the base and of the file; null drops one of the base, ``base: null`` drops all of them."""
    merged = {**base, **_require_mapping("deviations", deviations)}
    if "base" in merged:
        merged = dict(deviations)
    return {subject: reason for subject, reason in merged.items() if reason is not None}


def _require_mapping(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{where} must hold settings by name, got {value!r}")
    for name in NESTED & set(value):
        if not isinstance(value[name], dict):
            raise TypeError(f"{where}.{name} must hold settings by name, got {value[name]!r}")
    return value


def _keys(kind: type[Any]) -> list[str]:
    return [entry.name for entry in fields(kind)]


def _require_keys(where: str, values: dict[str, Any], kind: type[Any]) -> None:
    missing = []
    for entry in fields(kind):
        is_optional = entry.default is not MISSING or entry.default_factory is not MISSING
        if not is_optional and entry.name not in values:
            missing.append(entry.name)
    if missing:
        hint = "; begin with 'base: fair' to list only the differences" if kind is Protocol else ""
        raise ValueError(f"{where} lacks {', '.join(missing)}{hint}")


def _check_all_settings(protocol: Protocol) -> None:
    """Find values that no run can have when the file is loaded, not on the third day of training."""
    losses = {"contrastive", "proxy-anchor", *protocol.losses} - set(KINDS)
    pooling_names = {*protocol.pooling, *(choice.name for choice in protocol.pooling_choices)}
    # Values are checked one by one, so one run for each is enough, and no method needs every pooling.
    cases: list[tuple[str, list[str]]] = [(pooling, []) for pooling in sorted(pooling_names)]
    cases += [("average", [method]) for method in protocol.methods]
    checked: set[str] = set()
    for backbone, data_set, loss, variant, (pooling, methods) in product(
        protocol.backbones, DATA_SETS, sorted(losses), VARIANTS, cases
    ):
        settings = settings_for(
            protocol,
            data_set=data_set,
            loss=loss,
            pooling=pooling,
            methods=methods,
            variant=variant,
            backbone=backbone,
        )
        values = {f"{name}: {value!r}" for name, value in settings.items()}
        if not values.issubset(checked):
            Settings(**settings)
            checked |= values
