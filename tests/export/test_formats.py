"""Exported files give what the model gives, for every pooling that can be exported and for any batch."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lookalike import pooling as poolings
from lookalike.export import Graph, onnx_file, quantise_weights, write_onnx, write_torch
from lookalike.models import Backbone, Embedder
from lookalike.models.input_spec import InputSpec
from lookalike.pooling import transport

SPEC = InputSpec(size=16, resize=20, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))


class Squares(nn.Module):
    """A small network: squares of 4 x 4 pixels, each on its own."""

    num_features = 8

    def __init__(self) -> None:
        super().__init__()
        self.squares = nn.Conv2d(3, 8, 4, 4)
        self.norm = nn.BatchNorm2d(8)

    def forward_features(self, images: Tensor) -> Tensor:
        return torch.relu(self.norm(self.squares(images)))


def small(pooling: str, normalise: Any = "l2") -> Embedder:
    torch.manual_seed(0)
    settings = {"num_prototypes": 4} if pooling in ("netvlad", "otp", "gsp", "gem+gsp", "max+gsp") else {}
    embedder = Embedder(Backbone("squares", Squares(), SPEC), 8, pooling, settings, normalise)
    with torch.no_grad():
        for parameter in embedder.head.pooling.parameters():  # some start at zero, where a part would decide nothing
            parameter.add_(0.1 * torch.randn_like(parameter))
    return embedder.eval()


def pictures(count: int) -> Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(count))


def session(path: Path) -> Any:
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(str(path), options)


def assert_same(path: Path, graph: Graph, tolerance: float = 1e-4) -> None:
    """At several sizes of batch, one of which is 1, none of which it was traced with."""
    ran: Callable[[Tensor], list[Any]]
    if path.suffix == ".onnx":
        opened = session(path)
        assert [each.name for each in opened.get_outputs()] == graph.outputs
        ran = lambda images: opened.run(None, {"images": images.numpy()})  # noqa: E731
    else:
        module = torch.export.load(path).module()
        ran = lambda images: list(module(images))  # noqa: E731
    for count in (1, 5):
        images = pictures(count)
        with torch.inference_mode():
            expected = graph(images)
        for name, ours, theirs in zip(graph.outputs, expected, ran(images), strict=True):
            np.testing.assert_allclose(np.asarray(theirs), ours, atol=tolerance, err_msg=name)


class Several(nn.Module):
    """All poolings behind one network, to be exported in one go: converting takes seconds each time."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.backbone = small("average").backbone
        self.heads = nn.ModuleList(small(name).head for name in names)

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        tokens = self.backbone(images)
        return tuple(head(tokens) for head in self.heads)


@pytest.fixture
def fewer_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tracing writes every Newton step of GSP out; the tame problems here need two."""
    monkeypatch.setattr(transport, "STEPS_WHEN_NARROW", 2)


def test_every_pooling_but_gsp_and_those_refused(tmp_path: Path) -> None:
    """GSP has a test of its own; in pair with others it is the same code."""
    pytest.importorskip("onnxscript")
    names = [name for name in poolings.names() if name not in onnx_file.REFUSED and "gsp" not in name]
    assert len(names) == 18
    several: Any = Several(names).eval()
    several.embedder, several.outputs = small("average"), [f"v{i}" for i in range(len(names))]
    onnx_file._convert(several).save(tmp_path / "all.onnx", external_data=False)
    opened = session(tmp_path / "all.onnx")
    for count in (1, 3):
        images = pictures(count)
        images[0, :, :8] = images[0, :, :1, :1]  # alike and zero after the network, where roots want a floor
        with torch.inference_mode():
            expected = several(images)
        got = opened.run(None, {"images": images.numpy()})
        for name, ours, theirs in zip(names, expected, got, strict=True):
            assert ours.abs().max() > 0.01
            np.testing.assert_allclose(theirs, ours, atol=1e-4, err_msg=name)


@pytest.mark.usefixtures("fewer_steps")
def test_onnx(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    path, embedder = tmp_path / "model.onnx", small("gsp", "none")
    difference = write_onnx(embedder, path, details=True)
    assert difference is not None
    assert difference < 1e-5
    graph = Graph(embedder, details=True)
    assert graph.outputs == ["vectors", "weights", "attributes"]
    assert_same(path, graph)
    opened = session(path)
    weights = opened.run(["weights"], {"images": pictures(2).numpy()})[0]
    assert weights.shape == (2, 4, 4)
    np.testing.assert_allclose(weights.sum((1, 2)), 1, atol=1e-5)

    assert opened.get_inputs()[0].shape == ["batch", 3, 16, 16]
    known = json.loads(opened.get_modelmeta().custom_metadata_map["lookalike"])
    assert known["preprocessing"]["mean"] == [0.4, 0.5, 0.6]
    assert (known["preprocessing"]["resize"], known["preprocessing"]["size"]) == (20, 16)
    assert (known["distance"], known["dim"], known["outputs"]) == ("l2", 8, graph.outputs)
    assert known["pooling"]["name"] == "gsp"
    assert not known["int8_weights"]
    assert b"site-packages" not in path.read_bytes()  # nor any other path of this machine


@pytest.mark.usefixtures("fewer_steps")
@pytest.mark.parametrize(("pooling", "details"), [("gsp", True), ("gemax", False)])
def test_torch(pooling: str, details: bool, tmp_path: Path) -> None:
    path, embedder = tmp_path / "model.pt2", small(pooling)
    assert write_torch(embedder, path, details=details) < 1e-5
    assert_same(path, Graph(embedder, details))
    extra = {"lookalike.json": ""}
    torch.export.load(path, extra_files=extra)
    assert json.loads(extra["lookalike.json"])["preprocessing"]["resize"] == 20


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_int8(suffix: str, tmp_path: Path) -> None:
    """A wide layer: in the file its weights take a quarter, and count as what they were rounded to."""
    pytest.importorskip("onnxscript")
    torch.manual_seed(0)
    embedder = Embedder(Backbone("squares", Squares(), SPEC), 16384, "average").eval()
    assert embedder.head.projection is not None
    weight = embedder.head.projection.weight.detach().clone()
    assert quantise_weights(embedder) == 8 * 3 * 16 + 16384 * 8
    scales = weight.abs().amax(1, keepdim=True) / 127
    torch.testing.assert_close(embedder.head.projection.weight, (weight / scales).round() * scales)
    assert (embedder.head.projection.weight != weight).float().mean() > 0.8  # of eight, the largest stays
    path = tmp_path / f"int8{suffix}"
    assert (write_onnx if suffix == ".onnx" else write_torch)(embedder, path, int8=True) is not None
    assert_same(path, Graph(embedder))
    assert path.stat().st_size < 0.7 * 4 * weight.numel()  # a byte for each, a scale for eight, and the graph
    assert quantise_weights(embedder) == 0


def test_int8_of_a_layer_of_zeros() -> None:
    layer = nn.Linear(3, 2)
    nn.init.zeros_(layer.weight)
    quantise_weights(layer)
    assert torch.equal(layer.weight, torch.zeros(2, 3))


def test_what_cannot_be_exported_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"^the pooling gemax cannot be exported to ONNX: it solves systems .* use --format torch$"
    ):
        write_onnx(small("gemax"), tmp_path / "model.onnx")
    with pytest.raises(ValueError, match=r"^bilinear does not weigh places: export it without details$"):
        write_torch(small("bilinear"), tmp_path / "model.pt2", details=True)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_differs_from_the_model_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr("lookalike.export.graph.TOLERANCE", -1.0)
    for suffix, write in ((".onnx", write_onnx), (".pt2", write_torch)):
        path = tmp_path / f"model{suffix}"
        path.write_text("what was there")
        with pytest.raises(ValueError, match=r"was not written: .* differ from the model's by"):
            write(small("average"), path)
        assert path.read_text() == "what was there"
    assert len(list(tmp_path.iterdir())) == 2
