"""A protocol says how the numbers of a table come about: what is held out, how often a model is trained, with which
settings, and what is averaged. It is a YAML file; ours are in ``protocols/``, with the lines of the papers they follow.

    protocol = load_protocol("fair")                  # or a file of your own
    for fold, repeat in protocol.runs:
        settings = settings_for(protocol, data_set="cub", loss="c2", pooling="gsp", fold=fold, repeat=repeat)
"""

from collections.abc import Sequence
from dataclasses import MISSING, fields
from itertools import product
from pathlib import Path
from typing import Any, Literal

import yaml

from lookalike import objectives
from lookalike._util.checks import check_count
from lookalike._util.suggestions import did_you_mean
from lookalike.data import datasets as benchmarks
from lookalike.experiments.description import METHODS, Protocol, Split
from lookalike.experiments.layers import INTERVALS, KINDS, NESTED, VARIANTS, Context, merge, resolve, without_nulls
from lookalike.objectives import full_name
from lookalike.objectives.presets import DATA_SETS
from lookalike.training.settings import Settings

FILES = Path(__file__).parent / "protocols"
MANY_CLASSES = 1000  # training classes above which a set that is none of the four is treated as sop, not as cub
LAYERED = ("losses", "pooling", "methods")

__all__ = ["METHODS", "Protocol", "Split", "column", "load_protocol", "names", "settings_for"]


def names() -> list[str]:
    """The protocols that come with the package."""
    return sorted(path.stem for path in FILES.glob("*.yaml"))


def load_protocol(name_or_path: str | Path) -> Protocol:
    """A protocol by its name, or from a YAML file, which may begin with ``base: fair`` and say what is different.

    >>> load_protocol("tuning").split
    Split(folds=5, models=1, steered_by='validation')
    """
    path = _find(name_or_path, Path())
    try:
        values = _read(path, ())
        _require_keys("a protocol", values, Protocol)
        if not isinstance(values["split"], dict):
            raise TypeError(f"split must hold folds, models and steered_by, got {values['split']!r}")
        _check_keys("split", values["split"], Split)
        _require_keys("split", values["split"], Split)
        protocol = Protocol(**{**values, "split": Split(**values["split"])})
        _try_every_run(protocol)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{path}: {error}") from None
    return protocol


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
) -> dict[str, Any]:
    """The fields of ``Settings`` for one run, all that the protocol has a say in.

    data_set: one of cub, cars, inshop, sop; for any other those of cub hold, or those of sop if it has more than 1000
        training ``classes``.
    methods: of "zero-shot", "memory", "ccp" and "centres". "zero-shot" with average pooling is GSP that keeps all: the
        same vector, with attributes (thesis, Table 5.3).
    size: of the embedding; None: the protocol's first. The size of all models joined stands for that of each.
    variant: "S" or "L", of memory, CCP and SoftTriple.
    Not in it: which classes are held out (``Protocol.held_out``), the data, the folder, the machine.
    """
    loss = full_name(loss)
    kind = KINDS[objectives.training_hints(loss).per_class == 1]
    backbone = backbone or protocol.backbones[0]
    _check_run(protocol, methods, fold, repeat, variant)
    context = Context(column(data_set, classes), kind, variant, backbone, tuple(protocol.backbones))
    keeps_all = "zero-shot" in methods and pooling == "average"
    pooling = "gsp" if keeps_all else pooling
    layers = [protocol.training, protocol.losses.get(kind, {}), protocol.losses.get(loss, {})]
    layers += [protocol.methods[method] for method in METHODS if method in methods]
    layers += [protocol.pooling.get(part, {}) for part in pooling.split("+")]
    found: dict[str, Any] = {}
    for layer in layers:
        found = merge(found, resolve(layer, context))
    found = without_nulls(found)
    intervals = found.pop(INTERVALS, 0)
    waits = 0 if found.get("freeze_backbone") else intervals * found.get("evaluate_every", Settings.evaluate_every)
    inside = found.setdefault("pooling_settings", {})
    if inside.get("init") == "k-centre":
        inside["delay"] = waits  # prototypes are chosen once the embedding layer has warmed up
    if keeps_all:
        inside["keep"] = 1.0
    if protocol.split.steered_by == "validation":
        found |= {"validation": 1 / protocol.split.folds, "validation_order": "contiguous"}
    return found | {
        "backbone": backbone,
        "dim": _one_size(protocol, backbone, size),
        "pooling": pooling,
        "loss": loss,
        "warm_up": waits,
        "seed": repeat * protocol.split.models + fold,
    }


def column(data_set: str, classes: int | None = None) -> str:
    """Which of the four data sets' settings hold for a data set with so many training classes.

    >>> column("cars196"), column("glyphs"), column("faces", classes=8000)
    ('cars', 'cub', 'sop')
    """
    benchmark = benchmarks.lookup(data_set)
    if benchmark is not None and benchmark.name in DATA_SETS:
        return benchmark.name
    if classes is None and benchmark is not None and "train" in benchmark.parts:
        classes = benchmark.parts["train"].classes
    return "sop" if (classes or 0) > MANY_CLASSES else "cub"


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


def _one_size(protocol: Protocol, backbone: str, size: int | None) -> int:
    """The size of one model's embedding."""
    sizes = protocol.sizes_for(backbone)
    joined = [one * protocol.split.models for one in sizes] if protocol.concatenate else []
    if size is None or size in joined:
        return sizes[0] if size is None else sizes[joined.index(size)]
    if size not in sizes:
        known = ", ".join(str(one) for one in [*sizes, *joined])
        raise ValueError(f"size must be one of {known} in the protocol {protocol.name} with {backbone}, got {size}")
    return size


def _find(name_or_path: str | Path, folder: Path) -> Path:
    """A file, as seen from ``folder``, or one of ours."""
    path = folder / Path(name_or_path).expanduser()
    if path.is_file():
        return path
    ours = FILES / f"{name_or_path}.yaml"
    if str(name_or_path) in names():
        return ours
    hint = did_you_mean(str(name_or_path), names()) or f"; there are: {', '.join(names())}, or a file"
    raise ValueError(f"there is no protocol {str(name_or_path)!r}{hint}")


def _read(path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    """What a file says, on top of what its base says."""
    if path.resolve() in seen:
        raise ValueError(f"{path} is its own base")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"it cannot be read as YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ValueError(f"a protocol must hold settings by name, got {type(values).__name__}")
    base_name = values.pop("base", None)
    _check_keys("", values, Protocol, more=("base",))
    if base_name is None:
        return values
    base = _read(_find(str(base_name), path.parent), (*seen, path.resolve()))
    for name in LAYERED:
        below, above = base.get(name, {}), _mapping(name, values.get(name, {}))
        layers = {key: _mapping(f"{name}.{key}", layer) for key, layer in above.items()}
        values[name] = {key: merge(below.get(key, {}), layers.get(key, {})) for key in {**below, **layers}}
    values["training"] = merge(base.get("training", {}), _mapping("training", values.get("training", {})))
    return {**base, "name": path.stem, **values}


def _mapping(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"{where} must hold settings by name, got {value!r}")
    for name in NESTED & set(value):
        if not isinstance(value[name], dict):
            raise TypeError(f"{where}.{name} must hold settings by name, got {value[name]!r}")
    return value


def _check_keys(where: str, values: dict[str, Any], kind: type[Any], more: Sequence[str] = ()) -> None:
    known = [entry.name for entry in fields(kind)]
    for name in values:
        if name not in known:
            raise ValueError(f"{where or 'a protocol'} has no key {name!r}{did_you_mean(str(name), [*known, *more])}")


def _require_keys(where: str, values: dict[str, Any], kind: type[Any]) -> None:
    needed = [entry.name for entry in fields(kind) if entry.default is MISSING and entry.default_factory is MISSING]
    if lacking := [name for name in needed if name not in values]:
        hint = "; begin with 'base: fair' to say only what is different" if kind is Protocol else ""
        raise ValueError(f"{where} lacks {', '.join(lacking)}{hint}")


def _try_every_run(protocol: Protocol) -> None:
    """A value that no run can have is an error of the file, not of the third day of training."""
    losses = {"contrastive", "proxy-anchor", *protocol.losses} - set(KINDS)
    added: list[list[str]] = [[], *([method] for method in protocol.methods)]
    pooled = {*protocol.poolings, *protocol.pooling}
    seen: set[str] = set()  # values are checked one by one, so one run for each is enough
    for backbone, data_set, loss in product(protocol.backbones, DATA_SETS, sorted(losses)):
        for variant, methods, pooling in product(VARIANTS, added, sorted(pooled)):
            found = settings_for(
                protocol,
                data_set=data_set,
                loss=loss,
                pooling=pooling,
                methods=methods,
                variant=variant,
                backbone=backbone,
            )
            if not seen.issuperset(new := {f"{name}: {value!r}" for name, value in found.items()}):
                Settings(**found)
                seen |= new
