"""Backbones by name, and their weights.

All timm networks that end in a map or in patch tokens, and four of our own: ``bn_inception``, ``resnet20``,
``resnetv2-20`` and, for quick trials with 64 px, ``resnet8-half``. Nothing is downloaded unless asked for.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
from torch import Tensor, nn

from lookalike._util.suggestions import did_you_mean
from lookalike._util.untrusted import read_json
from lookalike.models import lite0_weights
from lookalike.models.backbone import Backbone
from lookalike.models.bn_inception import BNInception
from lookalike.models.cifar_resnet import CifarResNet
from lookalike.models.weight_files import load_into, read_weights

_OURS: dict[str, Callable[[], nn.Module]] = {
    "bn_inception": BNInception,
    "resnet20": CifarResNet,
    "resnet8-half": lambda: CifarResNet(blocks=1, half=True),
    "resnetv2-20": lambda: CifarResNet(preactivate=True),
}
_ALIASES = {"efficientnet_lite0": "tf_efficientnet_lite0"}  # timm's efficientnet_lite0 pads differently
_FROM_SCRATCH = ("resnet20", "resnet8-half", "resnetv2-20")  # no published weights

# Arguments by which timm's families accept other input sizes than that of their weights.
_ANY_SIZE: tuple[dict[str, Any], ...] = ({"strict_img_size": False}, {"dynamic_img_size": True}, {})


def names() -> list[str]:
    """The names of our own backbones; those of ``timm.list_models()`` work as well."""
    return sorted([*_OURS, *_ALIASES])


def is_backbone(name: str) -> bool:
    """Whether ``create_backbone`` knows the name."""
    return name in _OURS or timm.is_model(_ALIASES.get(name, name))


def starts_random(name: str, weights: str | Path = "auto") -> bool:
    """Whether ``create_backbone`` gives it random weights."""
    return weights == "none" or (weights == "auto" and name in _FROM_SCRATCH)


def create_backbone(name: str, *, weights: str | Path = "auto") -> Backbone:
    """Create a backbone.

    Args:
        name: One of ``names()`` or of ``timm.list_models()``.
        weights: "auto" takes the weights that come with an installed package, and random ones for our resnets, which
            have no published weights. "none" is random, "timm" lets timm download. Anything else is a file
            (.safetensors, or a state dict that torch reads without pickle) or the folder of a run with this backbone.

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
        hint = did_you_mean(name, [*names(), *timm.list_models()])
        raise ValueError(f"no backbone is called {name!r}{hint}; use one of {', '.join(names())}, or one of timm's")
    state = _read(name, weights)
    spec = None
    if name in _OURS:
        network = _OURS[name]()
    else:
        network = _create_timm(_ALIASES.get(name, name), pretrained=weights == "timm")
        if _is_lite0(name) and weights != "timm":
            spec = lite0_weights.SPEC
    if state is not None:
        if isinstance(network, BNInception):
            state = network.published(state)
        load_into(network, state, what=f"the backbone {name}", ignore=_classifier(network))
    return Backbone(name, network, spec)


def _is_lite0(name: str) -> bool:
    return _ALIASES.get(name, name) == "tf_efficientnet_lite0"


def _read(name: str, weights: str | Path) -> dict[str, Tensor] | None:
    """The state dict to load; None for random weights and for those that timm downloads."""
    if weights == "auto" and _is_lite0(name):
        return lite0_weights.to_timm_names(read_weights(lite0_weights.weights_file()))
    if starts_random(name, weights):
        return None
    if weights == "auto" or (weights == "timm" and name in _OURS):
        choices = "a file, or 'none' for a random start"
        if name not in _OURS:
            choices = f"'timm' to download them, {choices}"
        raise ValueError(f"no weights of {name} come with a package; set weights to {choices}")
    if weights == "timm":
        return None
    if Path(weights).is_dir():
        return _read_run(name, Path(weights))
    state = read_weights(Path(weights))
    if lite0_weights.has_source_names(state):
        return lite0_weights.to_timm_names(state)
    return state


def _read_run(name: str, folder: Path) -> dict[str, Tensor]:
    """The weights of the backbone that a run has trained."""
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
    for key, value in read_weights(folder / "model.safetensors").items():
        if key.startswith("backbone."):
            backbone[key.removeprefix("backbone.network.")] = value
    return backbone


def _create_timm(name: str, pretrained: bool) -> nn.Module:
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
