"""Backbones by name, and their weights.

All timm networks that end in a map or in patch tokens, and some of our own: ``bn_inception``, ``resnet50-keras``,
``resnet20``, ``resnetv2-20``, ``bottleneck20``, ``bottleneck29`` and, for quick trials with 64 px, ``resnet8-half``.
Nothing is downloaded unless asked. timm is imported where it is used, since that takes seconds.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lookalike._util.suggestions import did_you_mean
from lookalike._util.untrusted import read_json
from lookalike.models import efficientnet_lite0, keras_resnet50, lite0_weights
from lookalike.models.backbone import Backbone
from lookalike.models.bn_inception import BNInception
from lookalike.models.cifar_bottleneck import CifarBottleneck
from lookalike.models.cifar_resnet import CifarResNet
from lookalike.models.known_weights import files_for
from lookalike.models.text_names import is_two_towers
from lookalike.models.two_towers import create_two_towers
from lookalike.models.weight_files import Fit, ShapesOnly, compare, load_into
from lookalike.models.weight_formats import SourceWeights, is_tfjs, read_source

_OURS: dict[str, Callable[[], nn.Module]] = {
    "bn_inception": BNInception,
    "resnet20": CifarResNet,
    keras_resnet50.NAME: keras_resnet50.create_network,
    "resnet8-half": lambda: CifarResNet(blocks=1, half=True),
    "resnetv2-20": lambda: CifarResNet(preactivate=True),
    "bottleneck20": CifarBottleneck,
    "bottleneck29": lambda: CifarBottleneck(blocks=3),
}
_ALIASES = {"efficientnet_lite0": efficientnet_lite0.NAME}  # timm's efficientnet_lite0 pads differently
_FROM_SCRATCH = ("resnet20", "resnet8-half", "resnetv2-20", "bottleneck20", "bottleneck29")  # no published weights
# Backbones whose names and shapes a file of unknown content is compared with.
_COMMON = (
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "mobilenetv2_100",
    "mobilenetv3_large_100",
    "efficientnet_lite0",
    "tf_efficientnet_lite1",
    "tf_efficientnet_lite2",
    "efficientnet_b0",
    "tf_efficientnet_b0",
    "densenet121",
    "inception_v3",
    "legacy_xception",
    "vgg16",
    "regnety_016",
    "convnext_tiny",
    "convnext_small",
    "vit_tiny_patch16_224",
    "vit_small_patch16_224",
    "vit_base_patch16_224",
    "vit_small_patch14_dinov2",
    "vit_base_patch14_dinov2",
    "swin_tiny_patch4_window7_224",
)
_CLOSE = 0.1  # share of the tensors from which on a backbone is named as the closest

# Arguments by which timm's families accept other input sizes than that of their weights.
_ANY_SIZE: tuple[dict[str, Any], ...] = ({"strict_img_size": False}, {"dynamic_img_size": True}, {})


def names() -> list[str]:
    """The names of our own backbones; those of ``timm.list_models()`` work as well."""
    return sorted([*_OURS, *_ALIASES])


def is_backbone(name: str) -> bool:
    """Whether ``create_backbone`` knows the name."""
    if name in _OURS or _is_lite0(name) or is_two_towers(name):
        return True
    import timm

    return timm.is_model(_ALIASES.get(name, name))


def starts_random(name: str, weights: str | Path = "auto") -> bool:
    """Whether ``create_backbone`` gives it random weights."""
    return weights == "none" or (weights == "auto" and name in _FROM_SCRATCH)


def create_backbone(name: str, *, weights: str | Path = "auto") -> Backbone:
    """Create a backbone.

    Args:
        name: One of ``names()`` or of ``timm.list_models()``.
        weights: "auto" takes the weights that come with an installed package, and random ones for our resnets, which
            have no published weights. "none" is random, "timm" lets timm download. Anything else is a file
            in one of the formats of ``weight_formats`` or the folder of a run with this backbone.

    Returns:
        The backbone, on the CPU.

    Raises:
        ValueError: If there is no such backbone, it has no such weights, or they do not fit.
        OSError: If timm cannot download the weights.

    Examples:
        >>> import torch
        >>> create_backbone("resnet20")(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 64, 64])
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a backbone must be a string, got {type(name).__name__}")
    if not is_backbone(name):
        import timm

        hint = did_you_mean(name, [*names(), *timm.list_models()])
        raise ValueError(f"no backbone is called {name!r}{hint}; use one of {', '.join(names())}, or one of timm's")
    if is_two_towers(name):
        towers = create_two_towers(name, weights)
        return Backbone(name, towers, towers.spec)
    source = _read(name, weights)
    network = _create_network(name, pretrained=weights == "timm")
    spec = None
    if _is_lite0(name) and weights != "timm":
        spec = lite0_weights.SPEC
    if source is not None:
        spec = source.spec or spec
        state = _reshape(network, source.state)
        fit = compare(network, state, _classifier(network))
        if not fit.is_complete:
            raise ValueError(explain_misfit(Match(name, fit), source))
        load_into(network, state, what=f"the backbone {name}", ignore=_classifier(network))
    return Backbone(name, network, spec)


def check_weights(name: str, weights: str | Path = "auto") -> None:
    """Check that ``create_backbone`` would find weights that fit, without building the network in memory.

    Raises:
        ValueError: If there are none, or they do not fit.
    """
    if is_two_towers(name):
        create_two_towers(name, weights)
        return
    if weights == "timm" and name not in _OURS:
        import timm

        if not timm.is_model_pretrained(_ALIASES.get(name, name)):
            raise ValueError(f"timm has no weights of {name}")
        return
    source = _read(name, weights)
    if source is None:
        return
    match = match_weights(source, [name])[0]
    if not match.fit.is_complete:
        raise ValueError(explain_misfit(match, source))


class Match(NamedTuple):
    """A backbone, and how weights fit it."""

    backbone: str
    fit: Fit


def match_weights(source: SourceWeights, candidates: Sequence[str] = ()) -> list[Match]:
    """Compare weights with backbones by names and shapes, without memory for the backbones.

    Args:
        source: The weights.
        candidates: Names of backbones; none: our own and common ones of timm.

    Returns:
        The matches, the best fit first.
    """
    matches = []
    for name in candidates or (*_OURS, *_COMMON):
        network = _network_shapes(name)
        state = _reshape(network, source.state)
        matches.append(Match(name, compare(network, state, _classifier(network))))
    matches.sort(key=lambda match: -match.fit.share)
    return matches


def explain_misfit(match: Match, source: SourceWeights) -> str:
    """Say in one line why weights do not fit a backbone, and which one they fit or come closest to."""
    best = match_weights(source)[0]
    closest = f"the closest is {best.backbone}, which has {best.fit.share:.0%} of the tensors"
    if best.fit.is_complete:
        closest = f"they fit {best.backbone}"
    elif best.fit.share < _CLOSE:
        closest = "they are not close to any common backbone"
    elif best.backbone == match.backbone:
        closest = "no common backbone is closer"
    return f"the weights do not fit the backbone {match.backbone}: {match.fit.describe()}; {closest}"


def weights_for(name: str, source: SourceWeights) -> dict[str, Tensor]:
    """The tensors of ``source`` that a backbone has, in its shapes; classifiers are left out."""
    network = _network_shapes(name)
    state = _reshape(network, source.state)
    return {name: state[name].contiguous() for name in network.state_dict() if name in state}


@lru_cache(maxsize=64)
def _network_shapes(name: str) -> nn.Module:
    """A network without memory for its weights."""
    with ShapesOnly():
        return _create_network(name)


def _create_network(name: str, pretrained: bool = False) -> nn.Module:
    # Ours are small, so they get memory also within ``ShapesOnly``. To compute shapes without memory, torch loads its
    # compiler, which takes longer. timm loads it in any case.
    with torch.device("cpu"):
        if name in _OURS:
            return _OURS[name]()
        if _is_lite0(name) and not pretrained:
            return efficientnet_lite0.EfficientNetLite0()
    return _create_timm(_ALIASES.get(name, name), pretrained)


def _reshape(network: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Older files of BN-Inception have other shapes."""
    if isinstance(network, BNInception):
        return network.published(state)
    return state


def _is_lite0(name: str) -> bool:
    return _ALIASES.get(name, name) == efficientnet_lite0.NAME


def _read(name: str, weights: str | Path) -> SourceWeights | None:
    """The weights to load; None for random weights and for those that timm downloads."""
    if weights == "auto" and _is_lite0(name):
        return read_source(lite0_weights.weights_file())
    if starts_random(name, weights):
        return None
    if weights == "auto" or (weights == "timm" and name in _OURS):
        choices = "a file (lookalike weights lists some), or 'none' for a random start"
        if name not in _OURS:
            choices = f"'timm' to download them, {choices}"
        raise ValueError(
            f"no weights of {name} come with a package; set weights to {choices}: "
            f"--weights FILE, in benchmark and tune --set weights=FILE{_where_to_get(name)}"
        )
    if weights == "timm":
        return None
    path = Path(weights).expanduser()
    if path.is_dir() and not is_tfjs(path):
        return SourceWeights(_read_run(name, path))
    return read_source(path)


def _where_to_get(name: str) -> str:
    files = files_for(name)
    if not files:
        return ""
    return f"; for example {files[0].file} ({files[0].megabytes:g} MB): {files[0].source}"


def _read_run(name: str, folder: Path) -> dict[str, Tensor]:
    """The weights of the backbone that a run has trained."""
    from lookalike.models.store import read_model

    try:
        settings = read_json(folder / "model.json")
        trained = settings["backbone"]
    except (OSError, ValueError, KeyError, TypeError):
        raise ValueError(
            f"weights must be 'auto', 'none', 'timm', a file or a run, and {folder} is not a run"
        ) from None
    if trained != name:
        raise ValueError(f"the run in {folder} has trained {trained}, whose weights do not fit {name}")
    backbone = {}
    for key, value in read_model(folder).weights.items():
        if key.startswith("backbone."):
            backbone[key.removeprefix("backbone.network.")] = value
    return backbone


def _create_timm(name: str, pretrained: bool) -> nn.Module:
    import timm

    for any_size in _ANY_SIZE:
        try:
            return timm.create_model(name, num_classes=0, pretrained=pretrained, **any_size)
        except TypeError as error:
            if not any_size or next(iter(any_size)) not in str(error):
                raise
        except RuntimeError as error:
            raise ValueError(f"timm cannot create {name}: {error}") from error
        except OSError as error:
            raise OSError(f"timm could not download the weights of {name}: {error}") from error
    raise AssertionError("the last of _ANY_SIZE has no arguments")


def _classifier(network: nn.Module) -> tuple[str, ...]:
    """Names of the classifier's layers, which a file may have and the network has not."""
    names = getattr(network, "classifier", None)
    if not isinstance(names, (str, tuple)):
        names = getattr(network, "default_cfg", {}).get("classifier") or ()
    return (names,) if isinstance(names, str) else tuple(names)
