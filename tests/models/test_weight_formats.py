"""Weights from elsewhere: the renamed network computes what the source's network computes."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import batch_norm, conv2d, max_pool2d, pad, relu

from lookalike.models import create_backbone
from lookalike.models.backbones import match_weights
from lookalike.models.weight_formats import read_source

Arrays = dict[str, NDArray[np.float32]]
BLOCKS = {2: 3, 3: 4, 4: 6, 5: 3}


def keras_weights() -> Arrays:
    """Random weights of Keras' ResNet-50 with its first names, kernels as (height, width, in, out)."""
    rng = np.random.default_rng(0)
    weights: Arrays = {}

    def layer(conv: str, norm: str, side: int, inside: int, outside: int) -> None:
        scale = (side * side * inside) ** -0.5
        weights[f"{conv}/kernel"] = rng.normal(0, scale, (side, side, inside, outside)).astype(np.float32)
        for name in (f"{conv}/bias", f"{norm}/beta", f"{norm}/moving_mean"):
            weights[name] = rng.normal(0, 0.1, outside).astype(np.float32)
        for name in (f"{norm}/gamma", f"{norm}/moving_variance"):
            weights[name] = rng.uniform(0.5, 1.5, outside).astype(np.float32)

    layer("conv1", "bn_conv1", 7, 3, 64)
    channels = 64
    for stage, blocks in BLOCKS.items():
        width = 32 * 2 ** (stage - 1)
        for block in "abcdef"[:blocks]:
            path = f"{stage}{block}_branch"
            if block == "a":
                layer(f"res{path}1", f"bn{path}1", 1, channels, 4 * width)
            layer(f"res{path}2a", f"bn{path}2a", 1, channels, width)
            layer(f"res{path}2b", f"bn{path}2b", 3, width, width)
            layer(f"res{path}2c", f"bn{path}2c", 1, width, 4 * width)
            channels = 4 * width
    return weights


def keras_forward(weights: Arrays, x: Tensor) -> Tensor:
    """Keras' definition in plain calls: the stride is at the first 1x1 convolution, and convolutions have a bias."""

    def layer(x: Tensor, conv: str, norm: str, stride: int = 1, padding: int = 0) -> Tensor:
        value = {name: torch.from_numpy(array) for name, array in weights.items() if name.split("/")[0] in (conv, norm)}
        kernel = value[f"{conv}/kernel"].permute(3, 2, 0, 1)
        x = conv2d(x, kernel, value[f"{conv}/bias"], stride, padding)
        mean, variance = value[f"{norm}/moving_mean"], value[f"{norm}/moving_variance"]
        return batch_norm(x, mean, variance, value[f"{norm}/gamma"], value[f"{norm}/beta"], eps=1.001e-5)

    x = relu(layer(pad(x, (3, 3, 3, 3)), "conv1", "bn_conv1", stride=2))
    x = max_pool2d(pad(x, (1, 1, 1, 1)), 3, 2)
    for stage, blocks in BLOCKS.items():
        for block in "abcdef"[:blocks]:
            path = f"{stage}{block}_branch"
            stride = 2 if block == "a" and stage > 2 else 1
            shortcut = x if block != "a" else layer(x, f"res{path}1", f"bn{path}1", stride)
            y = relu(layer(x, f"res{path}2a", f"bn{path}2a", stride))
            y = relu(layer(y, f"res{path}2b", f"bn{path}2b", padding=1))
            x = relu(shortcut + layer(y, f"res{path}2c", f"bn{path}2c"))
    return x


def with_later_names(weights: Arrays) -> Arrays:
    """The names since Keras 2.3: conv2_block1_1_conv/kernel:0."""
    renamed: Arrays = {}
    for name, value in weights.items():
        layer, kind = name.split("/")
        if layer == "conv1":
            layer = "conv1_conv"
        elif layer == "bn_conv1":
            layer = "conv1_bn"
        else:
            ending = "bn" if layer.startswith("bn") else "conv"
            place, branch = layer.removeprefix("bn").removeprefix("res").split("_branch")
            number = {"1": 0, "2a": 1, "2b": 2, "2c": 3}[branch]
            layer = f"conv{place[0]}_block{'abcdef'.index(place[1]) + 1}_{number}_{ending}"
        renamed[f"{layer}/{kind}:0"] = value
    return renamed


def with_oldest_names(weights: Arrays) -> Arrays:
    """The names in Keras' first file: conv1/conv1_W_1:0, bn_conv1/bn_conv1_running_std_1:0."""
    words = {"kernel": "W", "bias": "b", "moving_mean": "running_mean", "moving_variance": "running_std"}
    renamed: Arrays = {}
    for name, value in weights.items():
        layer, kind = name.split("/")
        renamed[f"{layer}/{layer}_{words.get(kind, kind)}_1:0"] = value
    return renamed


def write_npz(weights: Arrays, folder: Path) -> Path:
    np.savez(folder / "weights.npz", **with_later_names(weights))
    return folder / "weights.npz"


def write_h5(weights: Arrays, folder: Path) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "weights.h5", "w") as file:
        for name, value in with_oldest_names(weights).items():
            file[name] = value
        file["fc1000/fc1000_W_1:0"] = np.zeros((2048, 10), np.float32)
    return folder / "weights.h5"


def write_nested_h5(weights: Arrays, folder: Path) -> Path:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "model.h5", "w") as file:
        for name, value in with_later_names(weights).items():
            file[f"model_weights/{name.split('/')[0]}/{name}"] = value
        file["optimizer_weights/iterations:0"] = 3
    return folder / "model.h5"


def write_tfjs(weights: Arrays, folder: Path) -> Path:
    entries = []
    for name, value in weights.items():
        entries.append({"name": name, "shape": value.shape, "dtype": "float32"})
    content = b"".join(value.tobytes() for value in weights.values())
    middle = len(content) // 2 + 3  # shards end anywhere
    (folder / "a.bin").write_bytes(content[:middle])
    (folder / "b.bin").write_bytes(content[middle:])
    manifest = {"weightsManifest": [{"paths": ["a.bin", "b.bin"], "weights": entries}]}
    (folder / "model.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize("write", [write_npz, write_h5, write_nested_h5, write_tfjs])
def test_resnet50_of_keras_computes_what_keras_defines(write: Callable[[Arrays, Path], Path], tmp_path: Path) -> None:
    weights = keras_weights()
    backbone = create_backbone("resnet50-keras", weights=write(weights, tmp_path)).eval()
    images = torch.randn(2, 3, 96, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = keras_forward(weights, images)
        torch.testing.assert_close(backbone.maps(images).permute(0, 3, 1, 2), expected, rtol=1e-4, atol=1e-4)
    assert backbone.spec.bgr255
    assert backbone.spec.mean == (103.939, 116.779, 123.68)
    assert len(backbone.stages()) == 5


@pytest.mark.parametrize(("source", "backbone"), [("mobilenet_v2", "mobilenetv2_100"), ("resnet18", "resnet18")])
def test_torchvision_weights_compute_the_same_maps(source: str, backbone: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = torchvision.models.get_model(source, weights=None)
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
    torch.save(network.state_dict(), tmp_path / "file.pth")
    images = torch.randn(2, 3, 64, 96)
    modules = [module for name, module in network.named_children() if name not in ("avgpool", "fc", "classifier")]
    features = torch.nn.Sequential(*modules).eval()
    loaded = create_backbone(backbone, weights=tmp_path / "file.pth").eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded.maps(images).permute(0, 3, 1, 2), features(images), rtol=1e-4, atol=1e-4)


def cifar_state() -> dict[str, Tensor]:
    """ResNet-20 with the names of akamaster's files, as written by a network on several GPUs."""
    names = {"stem": "conv1", "stem_norm": "bn1", "stage1": "layer1", "stage2": "layer2", "stage3": "layer3"}
    state = {"module.linear.weight": torch.zeros(10, 64), "module.linear.bias": torch.zeros(10)}
    for name, value in create_backbone("resnet20").network.state_dict().items():
        layer, _, rest = name.partition(".")
        state[f"module.{names[layer]}.{rest.replace('norm', 'bn')}"] = torch.rand_like(value.float())
    return state


def test_cifar_resnets_bring_the_input_that_they_were_trained_with(tmp_path: Path) -> None:
    state = cifar_state()
    torch.save({"state_dict": state, "best_prec1": 91.7}, tmp_path / "resnet20.th")
    backbone = create_backbone("resnet20", weights=tmp_path / "resnet20.th")
    assert backbone.spec.mean == (0.485, 0.456, 0.406)
    loaded = backbone.network.state_dict()["stage2.0.norm2.running_var"]
    torch.testing.assert_close(loaded, state["module.layer2.0.bn2.running_var"])


def test_a_file_of_another_network_names_the_one_it_fits(tmp_path: Path) -> None:
    torch.save(timm.create_model("resnet18", num_classes=7).state_dict(), tmp_path / "file.pth")
    with pytest.raises(ValueError, match=r"do not fit the backbone bn_inception: 414 missing .*; they fit resnet18$"):
        create_backbone("bn_inception", weights=tmp_path / "file.pth")
    state = timm.create_model("resnet18", num_classes=7).state_dict()
    torch.save({name: value for name, value in state.items() if not name.startswith("layer4.1")}, tmp_path / "file.pth")
    with pytest.raises(ValueError, match=r"the closest is resnet18, which has 92% of the tensors"):
        create_backbone("bn_inception", weights=tmp_path / "file.pth")
    torch.save({"some.weight": torch.zeros(3)}, tmp_path / "file.pth")
    with pytest.raises(ValueError, match="not close to any common backbone"):
        create_backbone("bn_inception", weights=tmp_path / "file.pth")


def test_torchvision_and_keras_resnet50_are_not_confused(tmp_path: Path) -> None:
    torch.save(timm.create_model("resnet50").state_dict(), tmp_path / "file.pth")
    with pytest.raises(ValueError, match=r"they fit resnet50$"):
        create_backbone("resnet50-keras", weights=tmp_path / "file.pth")
    best = match_weights(read_source(write_npz(keras_weights(), tmp_path)))[0]
    assert best.backbone == "resnet50-keras"
    assert best.fit.is_complete


def test_broken_files_are_refused_in_one_line(tmp_path: Path) -> None:
    weights = {"conv1/kernel": np.zeros((2, 2), np.float32)}
    write_tfjs(weights, tmp_path)
    (tmp_path / "b.bin").write_bytes(b"")
    with pytest.raises(ValueError, match="needs more bytes than the shards have"):
        read_source(tmp_path)
    manifest = json.loads((tmp_path / "model.json").read_text())
    manifest["weightsManifest"][0]["paths"] = ["../a.bin"]
    (tmp_path / "model.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"not beside model\.json"):
        read_source(tmp_path)
    (tmp_path / "objects.npz").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="cannot be read as weights"):
        read_source(tmp_path / "objects.npz")
    np.savez(tmp_path / "objects.npz", a=np.array([object()]))
    with pytest.raises(ValueError, match="cannot be read as weights"):
        read_source(tmp_path / "objects.npz")
    for name, content in (("picture.jpg", b"\xff\xd8\xff\xe0"), ("objects.pth", pickle.dumps(Path("a"), 2))):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=r"cannot be read as weights: expected \.safetensors") as refused:
            read_source(tmp_path / name)
        assert "weights_only" not in str(refused.value)  # torch advises to run the code in the file
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty is a folder without weights"):
        read_source(tmp_path / "empty")
    (tmp_path / "text.h5").write_text("no weights")
    with pytest.raises(ValueError, match="cannot be read as weights"):
        read_source(tmp_path / "text.h5")
