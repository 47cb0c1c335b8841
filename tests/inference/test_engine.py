"""Engines give the features of the network, for every kind of backbone, batch and number of threads."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lookalike.inference import conversion, engine_name
from lookalike.inference.engine import TorchEngine, create_engine, head_each
from lookalike.inference.engine_name import EngineName, resolve_engine
from lookalike.inference.model import TrainedModel
from lookalike.inference.preprocess import to_inputs
from lookalike.models import Backbone, Embedder, create_backbone
from lookalike.models.stages import StageCut

CONVERTED: list[EngineName] = ["openvino", "onnxruntime"]
# Maps and tokens, squeeze-and-excitation, class tokens, channels last.
BACKBONES = [
    "resnet20",
    "tf_efficientnet_lite0",
    "resnet10t",
    "mobilenetv3_small_050",
    "test_vit",
    "test_convnext",
]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOKALIKE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make_backbone(name: str = "resnet20", seed: int = 0) -> Backbone:
    torch.manual_seed(seed)
    return create_backbone(name, weights="none").eval()


def own_records(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged, except for the line that announces a conversion."""
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("lookalike")]
    return [message for message in messages if not message.startswith("converting ")]


def test_a_conversion_is_announced_once(caplog: pytest.LogCaptureFixture) -> None:
    backbone = make_backbone()
    for _ in range(2):
        create_engine(backbone, backbone.spec, "openvino")
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("lookalike")]
    assert messages == ["converting resnet20 32 for openvino, once: this takes some seconds"]


def pictures(backbone: Backbone, count: int = 5) -> torch.Tensor:
    size = backbone.spec.size
    pixels = np.random.default_rng(1).integers(0, 256, (count, size, size, 3), np.uint8)
    pixels[1] = 0
    pixels[2] = 255
    return to_inputs(pixels, backbone.spec)


@pytest.mark.parametrize("engine", CONVERTED)
@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "resnet10t"])
def test_frozen_stages_are_converted(name: str, engine: EngineName, caplog: pytest.LogCaptureFixture) -> None:
    backbone = make_backbone(name)
    cut = StageCut(backbone, 2, backbone.spec.size)
    inputs = pictures(backbone)
    with torch.inference_mode():
        expected = cut.frozen.maps(inputs)
    made = create_engine(cut.frozen.eval(), backbone.spec, engine)
    assert made.name == engine
    assert not own_records(caplog)
    torch.testing.assert_close(made.maps(inputs), expected, rtol=1e-4, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("engine", CONVERTED)
@pytest.mark.parametrize("name", BACKBONES)
def test_features_equal_those_of_the_network(name: str, engine: EngineName, caplog: pytest.LogCaptureFixture) -> None:
    backbone = make_backbone(name)
    inputs = pictures(backbone)
    with torch.inference_mode():
        expected = backbone.maps(inputs)
    made = create_engine(backbone, backbone.spec, engine)
    assert made.name == engine, caplog.text
    features = made.maps(inputs)
    assert features.shape == expected.shape
    assert features.dtype == torch.float32
    assert (features - expected).abs().max() <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize("engine", CONVERTED)
def test_features_depend_neither_on_batch_nor_threads(engine: EngineName) -> None:
    backbone = make_backbone("tf_efficientnet_lite0")
    spec = backbone.spec.resized(96)
    inputs = pictures(backbone)[:, :, :96, :96]
    made = create_engine(backbone, spec, engine)
    one_by_one = torch.cat([made.maps(picture[None]) for picture in inputs])
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        together = create_engine(backbone, spec, engine).maps(inputs)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one_by_one, together)


@pytest.mark.parametrize("pooling", ["gsp", "average", "delf"])
def test_a_model_gives_the_same_vectors_and_heat_maps(pooling: str) -> None:
    torch.manual_seed(0)
    embedder = Embedder(make_backbone(), dim=16, pooling=pooling)
    shape = (4, embedder.input_spec.size, embedder.input_spec.size, 3)
    arrays = list(np.random.default_rng(2).integers(0, 256, shape, np.uint8))
    plain, fast = TrainedModel(embedder, "torch"), TrainedModel(embedder, "openvino")
    np.testing.assert_allclose(fast.embed(arrays), plain.embed(arrays), atol=1e-5)
    if plain.has_weights:
        for a, b in zip(fast.explain(arrays), plain.explain(arrays), strict=True):
            np.testing.assert_allclose(a.grid, b.grid, atol=1e-4)


def test_a_converted_network_is_stored_and_used_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = make_backbone()
    inputs = pictures(backbone)
    first = create_engine(backbone, backbone.spec, "openvino").maps(inputs)
    assert sorted(path.name for path in cache.rglob("network.*")) == ["network.bin", "network.xml"]

    def fail(*_: object) -> None:
        raise AssertionError("converted again")

    monkeypatch.setattr(conversion, "convert", fail)
    assert torch.equal(create_engine(backbone, backbone.spec, "openvino").maps(inputs), first)


def test_other_weights_are_another_network(cache: Path) -> None:
    for seed in (0, 1):
        backbone = make_backbone(seed=seed)
        inputs = pictures(backbone)
        features = create_engine(backbone, backbone.spec, "openvino").maps(inputs)
        expected = TorchEngine(backbone).maps(inputs)
        assert torch.allclose(features, expected, atol=1e-4)
    assert len(list(cache.rglob("network.xml"))) == 2


@pytest.mark.parametrize("damage", ["cut xml", "cut weights", "other weights", "no weights"])
def test_a_damaged_file_is_written_again(damage: str, cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    backbone = make_backbone()
    inputs = pictures(backbone)
    expected = create_engine(backbone, backbone.spec, "openvino").maps(inputs)
    (xml,) = cache.rglob("network.xml")
    weights = xml.with_suffix(".bin")
    content = weights.read_bytes()
    if damage == "cut xml":
        xml.write_bytes(xml.read_bytes()[:500])
    elif damage == "cut weights":
        weights.write_bytes(content[: len(content) // 2])
    elif damage == "other weights":
        weights.write_bytes(np.random.default_rng(0).normal(size=len(content) // 4).astype(np.float32).tobytes())
    else:
        weights.unlink()
    made = create_engine(backbone, backbone.spec, "openvino")
    assert made.name == "openvino"
    assert torch.equal(made.maps(inputs), expected)
    assert len(own_records(caplog)) == 1
    assert "is damaged and is written again" in caplog.text
    caplog.clear()
    create_engine(backbone, backbone.spec, "openvino")
    assert not own_records(caplog)


class Unconvertible(torch.nn.Module):
    """Its result depends on the numbers of the picture in a way that no tracer can follow."""

    num_features = 4

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(4, 3, 1, 1))

    def forward_features(self, images: torch.Tensor) -> torch.Tensor:
        maps = torch.nn.functional.conv2d(images, self.scale, stride=8)
        return maps * float(np.frombuffer(images.detach().contiguous().numpy().tobytes(), np.float32).max())


def test_a_network_that_does_not_convert_is_computed_by_torch(caplog: pytest.LogCaptureFixture) -> None:
    spec = make_backbone().spec
    backbone = Backbone("odd", Unconvertible(), spec).eval()
    made = create_engine(backbone, spec, "openvino")
    assert made.name == "torch"
    assert len(own_records(caplog)) == 1
    assert "openvino does not run odd, torch computes instead" in caplog.text
    inputs = pictures(backbone)
    assert made.maps(inputs).shape == (5, 4, 4, 4)


def test_which_engine_auto_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOOKALIKE_ENGINE")
    assert resolve_engine("auto", torch.device("cpu")) == "openvino"
    assert resolve_engine("auto", torch.device("cuda")) == "torch"
    monkeypatch.setenv("LOOKALIKE_ENGINE", "onnxruntime")
    assert resolve_engine("auto", torch.device("cpu")) == "onnxruntime"
    assert resolve_engine("torch", torch.device("cpu")) == "torch"
    monkeypatch.delenv("LOOKALIKE_ENGINE")
    monkeypatch.setattr(engine_name, "find_spec", lambda _: None)
    assert resolve_engine("auto", torch.device("cpu")) == "torch"
    with pytest.raises(ValueError, match="the engine openvino is not installed: pip install openvino"):
        resolve_engine("openvino", torch.device("cpu"))


def test_engines_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"unknown engine 'openvinno' \(did you mean 'openvino'\?\)"):
        resolve_engine("openvinno", torch.device("cpu"))
    with pytest.raises(ValueError, match="the engine openvino is for the CPU, got device cuda: use the engine torch"):
        resolve_engine("openvino", torch.device("cuda"))


def test_two_processes_convert_at_once(cache: Path) -> None:
    code = (
        "import torch; torch.manual_seed(0)\n"
        "from lookalike.inference.engine import create_engine\n"
        "from lookalike.models import create_backbone\n"
        "backbone = create_backbone('resnet20', weights='none').eval()\n"
        "print(create_engine(backbone, backbone.spec, 'openvino').name)\n"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in started:
        out, err = process.communicate(timeout=300)
        assert (out, process.returncode) == ("openvino\n", 0), err
    assert len(list(cache.rglob("network.xml"))) == 1
    assert not list(cache.rglob("tmp*"))


def test_a_head_runs_on_one_thread_and_gives_the_number_back() -> None:
    """A picture is too small to share, and its vector must not depend on the number of threads."""
    head = Embedder(make_backbone(), dim=8).head.eval()
    features = torch.randn(5, 16, 64)
    seen: list[int] = []

    def counted(bags: torch.Tensor) -> torch.Tensor:
        seen.append(torch.get_num_threads())
        vectors: torch.Tensor = head(bags)
        return vectors

    def failing(_: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("broken")

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with torch.no_grad():
            vectors = head_each(counted, features)
            expected = torch.cat([head(bag[None]) for bag in features])
        with pytest.raises(RuntimeError, match="broken"):
            head_each(failing, features)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert seen == [1] * 5
    torch.testing.assert_close(vectors, expected, atol=1e-6, rtol=1e-5)
