"""Backbones: layouts, places, names and weights."""

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from lookalike.models.backbone import Backbone, _grid
from lookalike.models.backbones import create_backbone


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("name", "size", "grid"),
    [
        ("resnet20", 32, (8, 8)),
        ("resnetv2-20", 40, (10, 10)),
        ("test_resnet", 64, (2, 2)),
        ("test_convnext", 64, (2, 2)),
        ("test_vit", 160, (10, 10)),
        ("test_vit", 96, (6, 6)),  # another size than that of its position embedding
        ("mambaout_femto", 64, (2, 2)),  # gives its maps with the channels last
        ("xcit_nano_12_p16_224", 64, (4, 4)),  # a class token without saying so
    ],
)
def test_shapes_and_grids(name: str, size: int, grid: tuple[int, int]) -> None:
    backbone = create_backbone(name, weights="none").eval()
    images = torch.randn(2, 3, size, size)
    tokens = backbone(images)
    assert tokens.shape == (2, grid[0] * grid[1], backbone.channels)
    assert backbone.grid(images) == grid


def test_pictures_that_are_not_square() -> None:
    for name in ("test_vit", "test_resnet"):
        backbone = create_backbone(name, weights="none").eval()
        images = torch.randn(1, 3, 96, 160)
        maps = backbone.maps(images)
        assert tuple(maps.shape[1:3]) == backbone.grid(images)
        assert maps.shape[1] < maps.shape[2]


@pytest.mark.parametrize(
    ("count", "size", "grid"), [(49, (224, 224), (7, 7)), (48, (192, 256), (6, 8)), (3, (16, 48), (1, 3))]
)
def test_grid(count: int, size: tuple[int, int], grid: tuple[int, int]) -> None:
    assert _grid(count, *size) == grid


def test_tokens_that_form_no_grid_are_refused() -> None:
    with pytest.raises(ValueError, match="no grid"):
        _grid(50, 224, 224)


class Registers(nn.Module):
    """A network whose tokens are what it was shown: two for nothing, then the pictures' 8 x 8 patches."""

    num_features, num_prefix_tokens = 3, 2

    def __init__(self) -> None:
        super().__init__()
        self.register = nn.Parameter(torch.full((1, 2, 3), -7.0))

    def forward_features(self, images: Tensor) -> Tensor:
        patches = nn.functional.avg_pool2d(images, 8).flatten(2).transpose(1, 2)
        return torch.cat([self.register.expand(len(images), -1, -1), patches], 1)


def test_class_and_register_tokens_are_left_out_and_places_count_row_by_row() -> None:
    backbone = Backbone("registers", Registers(), create_backbone("resnet20").spec)
    images = torch.zeros(1, 3, 32, 32)
    images[:, :, 8:16, 24:32] = 1.0  # second row, fourth column
    expected = torch.zeros(4, 4)
    expected[1, 3] = 1
    assert torch.equal(backbone.maps(images)[0, :, :, 0], expected)
    assert torch.equal(backbone(images)[0, :, 0], expected.flatten())


@pytest.mark.parametrize("name", ["test_vit", "test_resnet", "mambaout_femto", "resnet20"])
def test_the_place_of_a_change_in_the_picture_changes_most(name: str) -> None:
    backbone = create_backbone(name, weights="none").eval()
    side = 32 if name == "resnet20" else 160
    patch = side // 4
    for row, column in ((0, 3), (3, 0)):
        images = torch.zeros(2, 3, side, side)
        images[1, :, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch] = 3.0
        with torch.no_grad():
            maps = backbone.maps(images)
        change = (maps[1] - maps[0]).norm(dim=-1)
        height, width = change.shape
        rows, columns = (torch.arange(n) + 0.5 for n in (height, width))
        centre = (
            float((change.sum(1) * rows).sum() / change.sum()) / height * 4,
            float((change.sum(0) * columns).sum() / change.sum()) / width * 4,
        )
        assert (centre[0] > 2) == (row > 1)
        assert (centre[1] > 2) == (column > 1)


@pytest.mark.parametrize("name", ["test_convnext", "test_vit", "test_efficientnet", "resnet20", "resnetv2-20"])
def test_what_trains_gets_a_gradient_and_the_stages_name_all_of_it(name: str) -> None:
    backbone = create_backbone(name, weights="none")
    backbone(torch.randn(2, 3, backbone.spec.size, backbone.spec.size)).square().sum().backward()
    trains = [key for key, value in backbone.named_parameters() if value.requires_grad]
    assert all(dict(backbone.named_parameters())[key].grad is not None for key in trains)
    stages = backbone.stages()
    assert sorted(key for stage in stages for key in stage) == sorted(trains)
    assert len(stages) > 2


def test_the_head_of_a_classifier_that_is_gone_does_not_train() -> None:
    backbone = create_backbone("test_convnext", weights="none")
    frozen = [key for key, value in backbone.named_parameters() if not value.requires_grad]
    assert frozen == ["network.head.norm.weight", "network.head.norm.bias"]


def test_looking_at_a_network_leaves_it_and_the_random_numbers_alone() -> None:
    network = timm.create_model("test_resnet", num_classes=0)
    before, state = {k: v.clone() for k, v in network.state_dict().items()}, torch.get_rng_state()
    backbone = Backbone("test_resnet", network)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())
    assert backbone.training
    assert backbone.network.training


def test_input_spec_comes_from_timm() -> None:
    spec = create_backbone("test_vit", weights="none").spec
    assert (spec.size, spec.resize_to, spec.interpolation) == (160, 168, "bicubic")  # 160 / 0.95
    assert spec.mean == (0.5, 0.5, 0.5)


def test_unknown_names_and_missing_weights_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="resnet50"):
        create_backbone("resnet5o")
    with pytest.raises(ValueError, match="'timm' to download them"):
        create_backbone("resnet50")
    with pytest.raises(ValueError, match="a file"):
        create_backbone("bn_inception")
    with pytest.raises(ValueError, match="no file"):
        create_backbone("resnet20", weights=tmp_path / "none.pth")
    with pytest.raises(ValueError, match="neither one map nor one row of tokens but list"):
        create_backbone("crossvit_tiny_240", weights="none")
    with pytest.raises(TypeError, match="string"):
        create_backbone(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_from_a_file(suffix: str, tmp_path: Path) -> None:
    source = timm.create_model("test_resnet", num_classes=10)  # with a classifier, which is passed over
    state = source.state_dict()
    path = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save({"state_dict": {f"module.{key}": value for key, value in state.items()}}, path)
    else:
        save_file(state, path)
    images = torch.randn(1, 3, 64, 64)
    backbone = create_backbone("test_resnet", weights=path).eval()
    expected = source.eval().forward_features(images).flatten(2).transpose(1, 2)
    torch.testing.assert_close(backbone(images), expected)
    with pytest.raises(ValueError, match=r"do not fit the backbone resnet20: .*missing.*unknown"):
        create_backbone("resnet20", weights=path)


def test_files_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    for name, content in (("a.pth", b"not weights"), ("b.safetensors", b"not weights"), ("c.pth", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=name):
            create_backbone("resnet20", weights=tmp_path / name)
    torch.save({"weights": Path("an object")}, tmp_path / "object.pth")
    with pytest.raises(ValueError, match=r"object\.pth cannot be read as weights: expected .* that holds tensors only"):
        create_backbone("resnet20", weights=tmp_path / "object.pth")
