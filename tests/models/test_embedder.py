"""The Embedder: its parts add up, it explains itself, and it can be built again from its settings."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import normalize
from torch.nn.parallel import DistributedDataParallel

from lookalike.geometry import clip
from lookalike.models import Embedder, Head, create_backbone
from lookalike.models.input_spec import InputSpec
from lookalike.pooling import Pooled

GSP = {"num_prototypes": 4, "keep": 0.5, "sharpness": 5.0}


def make(**settings) -> Embedder:  # type: ignore[no-untyped-def]
    torch.manual_seed(0)
    return Embedder(create_backbone("resnet20"), **{"dim": 8, "pooling_settings": GSP, **settings})


def test_the_vector_is_projected_pooled_and_normalised() -> None:
    embedder = make(pooling="average", pooling_settings=None).eval()
    images = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        local = embedder.backbone(images) @ embedder.head.projection.weight.T
        torch.testing.assert_close(embedder(images), normalize(local.mean(1), dim=-1))


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_normalisations(scale: float) -> None:
    tokens = scale * torch.randn(4, 5, 6)
    heads = {name: Head(6, None, "average", normalise=name) for name in ("l2", "clip", "none")}
    mean = tokens.mean(1)
    torch.testing.assert_close(heads["none"](tokens), mean)
    torch.testing.assert_close(heads["clip"](tokens), clip(mean))
    torch.testing.assert_close(heads["l2"](tokens).norm(dim=-1), torch.ones(4))
    assert Head(6, None, "average").projection is None


def test_details_are_of_the_same_pass() -> None:
    embedder = make().eval()
    images = torch.randn(2, 3, 32, 32)
    pooled = embedder(images, details=True)
    assert isinstance(pooled, Pooled)
    assert torch.equal(pooled.vector, embedder(images))
    torch.testing.assert_close(pooled.weights.sum(1), torch.ones(2))
    assert (pooled.weights.shape, pooled.attributes.shape) == ((2, 64), (2, 4))
    pooled.attributes.square().sum().backward()
    assert embedder.head.projection.weight.grad.abs().sum() > 0


def test_explain_leaves_modes_statistics_and_gradients_alone() -> None:
    embedder = make().train()
    embedder.backbone.network.stage1.eval()
    modes = [module.training for module in embedder.modules()]
    state = copy.deepcopy(embedder.state_dict())
    seen = embedder.explain(torch.randn(2, 3, 32, 40))
    assert seen.grid == (8, 10)
    assert seen.heat_maps.shape == (2, 8, 10)
    assert not seen.vector.requires_grad
    assert [module.training for module in embedder.modules()] == modes
    assert all(torch.equal(state[key], value) for key, value in embedder.state_dict().items())


def test_the_heat_map_follows_what_the_prototypes_are_near_to() -> None:
    """A patch moves, and with it the place with the largest weight."""
    embedder = make(pooling_settings={"num_prototypes": 1, "keep": 0.05, "sharpness": 20.0}).eval()
    pictures = torch.zeros(3, 3, 32, 32)
    corners = ((0, 0), (0, 24), (24, 8))
    for picture, (row, column) in zip(pictures, corners, strict=True):
        picture[:, row : row + 8, column : column + 8] = 2 + torch.arange(8.0)
    with torch.no_grad():
        local = embedder.head.project(embedder.backbone.maps(pictures))
        plain = embedder.head.project(embedder.backbone.maps(torch.zeros(1, 3, 32, 32)))
        place = (local[0] - plain[0]).norm(dim=-1)[:2, :2].flatten().argmax()
        row, column = int(place) // 2, int(place) % 2
        scale = 2 / local[0, row, column].norm()
        embedder.head.projection.weight.mul_(scale)
        embedder.head.pooling.prototypes.copy_(0.99 * normalize(local[0, row, column], dim=-1)[None])
    for heat, (top, left) in zip(embedder.explain(pictures).heat_maps, corners, strict=True):
        best = int(heat.flatten().argmax())
        assert abs(best // 8 - top // 4 - 0.5) <= 1.5
        assert abs(best % 8 - left // 4 - 0.5) <= 1.5


def test_every_parameter_gets_a_gradient() -> None:
    embedder = make(pooling_settings={**GSP, "learn_keep": True, "learn_sharpness": True})
    weighted = embedder(torch.randn(4, 3, 32, 32)) * torch.randn(4, 8)
    weighted.sum().backward()
    missing = [name for name, parameter in embedder.named_parameters() if parameter.grad is None]
    assert missing == []
    assert all(bool(parameter.grad.isfinite().all()) for parameter in embedder.parameters())


def test_under_autocast_vectors_are_fp32_and_near_those_without() -> None:
    embedder = make().eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        plain = embedder(images)
        with torch.autocast("cpu", torch.bfloat16):
            rounded = embedder(images)
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded.norm(dim=-1), torch.ones(2), atol=1e-6, rtol=0)
    assert float((plain * rounded).sum(-1).min()) > 0.99


def test_the_head_takes_tokens_of_half_precision_masks_and_channels_last_maps() -> None:
    embedder = make().eval()
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        tokens = embedder.backbone(images)
        torch.testing.assert_close(embedder.head(tokens.half()), embedder(images), atol=1e-2, rtol=0)
        mask = torch.zeros(2, 64, dtype=torch.bool)
        mask[:, :10] = True
        torch.testing.assert_close(embedder.head(tokens, mask), embedder.head(tokens[:, :10]))
        last = copy.deepcopy(embedder).to(memory_format=torch.channels_last)
        torch.testing.assert_close(last(images.to(memory_format=torch.channels_last)), embedder(images))


def test_settings_are_json_and_build_the_same_again() -> None:
    embedder = make(normalise="clip", input_spec=InputSpec(size=48)).eval()
    settings = json.loads(json.dumps(embedder.settings()))
    again = Embedder.from_settings(settings).eval()
    assert again.settings() == settings
    again.load_state_dict(embedder.state_dict())
    images = torch.randn(2, 3, 48, 48)
    assert torch.equal(again(images), embedder(images))
    assert again.input_spec.size == 48
    with pytest.raises(ValueError, match="unknown \\['colour'\\]"):
        Embedder.from_settings({**settings, "colour": 1})


def test_bad_settings_raise_before_work() -> None:
    with pytest.raises(ValueError, match="normalise must be one of"):
        make(normalise="l1")
    with pytest.raises(ValueError, match="no pooling is called"):
        make(pooling="gps")
    with pytest.raises(TypeError, match="JSON"):
        make(pooling_settings={"keep": torch.tensor(0.5)})
    with pytest.raises(ValueError, match="dim must be at least 1"):
        make(dim=0)
    with pytest.raises(ValueError, match=r"\(B, 3, H, W\)"):
        make()(torch.zeros(3, 32, 32))


@pytest.fixture
def _process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_process_group")
@pytest.mark.parametrize("details", [False, True])
def test_distributed_training_waits_for_no_parameter(details: bool) -> None:
    """DDP raises at the second step if a parameter that trains got no gradient in the first."""
    torch.manual_seed(0)
    backbone = create_backbone("test_convnext", weights="none")  # has a norm that no local feature depends on
    embedder = Embedder(backbone, 8, "gsp", {"num_prototypes": 4, "init": "k-centre", "memory": 4})
    wrapped = DistributedDataParallel(embedder)
    for _ in range(3):  # the warm-up ends in the second step
        seen = wrapped(torch.randn(3, 3, 64, 64), details=details)
        loss = seen.vector.sum() + seen.attributes.square().sum() if details else seen.sum()
        loss.backward()
    assert embedder.head.pooling.ready
    trains = [parameter for parameter in embedder.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None for parameter in trains)


def test_the_distance_goes_with_the_normalisation() -> None:
    distances = [Head(8, 4, "average", normalise=name).distance for name in ("l2", "clip", "none")]
    assert distances == ["cosine", "l2", "l2"]
