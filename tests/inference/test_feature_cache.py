"""The feature cache: each picture and view once, and nothing else than what the backbone would give."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lookalike import data
from lookalike._util.files import cache_folder
from lookalike.data.pictures import Pictures, UnreadablePicture
from lookalike.data.transforms import Crop
from lookalike.inference import feature_cache
from lookalike.inference.feature_cache import FeatureCache
from lookalike.inference.preprocess import Preprocess
from lookalike.models import Backbone, create_backbone


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    return create_backbone("resnet20").eval()


@pytest.fixture
def folder(class_folders: Path, tmp_path: Path) -> Path:
    """Two classes of three pictures, to be changed at will."""
    for name in ("class0", "class1"):
        for picture in ("0.png", "1.png", "2.png"):
            (tmp_path / "pictures" / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(class_folders / name / picture, tmp_path / "pictures" / name / picture)
    return tmp_path / "pictures"


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_cache, "evaluation_batch", lambda: 4)


def cache(tmp_path: Path, backbone: Backbone, *, crop: Crop = "area", flip: bool = True, seed: int = 0) -> FeatureCache:
    return FeatureCache(tmp_path / "cache", backbone, backbone.spec, crop=crop, flip=flip, seed=seed)


def fill(cached: FeatureCache, pictures: Pictures, views: int = 1, workers: int = 0) -> list[tuple[str, int]]:
    """Compute what is missing; says what that was."""
    missing = cached.missing([(pictures, views)])
    done: list[int] = []
    cached.fill(missing, workers=workers, tick=done.append)
    assert sum(done) == len(missing)
    cached.store.refresh()
    return [(view.pictures.names[view.position], view.number) for view in missing]


def rows(cached: FeatureCache, pictures: Pictures, view: int = 0) -> torch.Tensor:
    return cached.read(cached.rows(pictures, view))


def repaint(file: Path, value: int) -> None:
    Image.fromarray(np.full((32, 32, 3), value, np.uint8)).save(file)


@torch.inference_mode()
def test_view_0_is_what_the_backbone_gives_in_evaluation(tmp_path: Path, folder: Path, backbone: Backbone) -> None:
    pictures = data.load(folder)
    cached = cache(tmp_path, backbone)
    assert len(fill(cached, pictures)) == 6
    transform = Preprocess(backbone.spec)
    expected = backbone(torch.stack([transform(pictures.image(i)) for i in range(6)]))
    got = rows(cached, pictures)
    assert got.shape == (6, 64, 64)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
    assert expected.std() > 0.1  # the tolerance means something
    part = pictures.take([4, 1])
    assert torch.equal(rows(cached, part), got[[4, 1]])


def test_nothing_is_computed_twice(tmp_path: Path, folder: Path, backbone: Backbone) -> None:
    fill(cache(tmp_path, backbone), data.load(folder))
    assert fill(cache(tmp_path, backbone), data.load(folder)) == []
    repaint(folder / "class1" / "9.png", 3)
    assert fill(cache(tmp_path, backbone), data.load(folder)) == [("class1/9.png", 0)]
    shutil.copy(folder / "class1" / "9.png", folder / "class0" / "another name.png")
    assert fill(cache(tmp_path, backbone), data.load(folder)) == []


def test_the_same_picture_twice_is_computed_once(tmp_path: Path, folder: Path, backbone: Backbone) -> None:
    shutil.copy(folder / "class0" / "0.png", folder / "class1" / "copy.png")
    pictures = data.load(folder)
    cached = cache(tmp_path, backbone)
    assert len(fill(cached, pictures)) == 6
    twins = [pictures.names.index(name) for name in ("class0/0.png", "class1/copy.png")]
    assert torch.equal(*rows(cached, pictures)[twins])


def test_a_changed_picture_changes_its_row_alone(tmp_path: Path, folder: Path, backbone: Backbone) -> None:
    cached = cache(tmp_path, backbone)
    fill(cached, data.load(folder))
    before = rows(cached, data.load(folder))
    repaint(folder / "class0" / "1.png", 200)
    again = cache(tmp_path, backbone)
    assert fill(again, data.load(folder)) == [("class0/1.png", 0)]
    after = rows(again, data.load(folder))
    assert [torch.equal(*pair) for pair in zip(before, after, strict=True)] == [True, False, True, True, True, True]


def test_one_weight_makes_another_store(tmp_path: Path, folder: Path, backbone: Backbone) -> None:
    pictures = data.load(folder)
    first = cache(tmp_path, backbone)
    fill(first, pictures)
    torch.manual_seed(1)
    other = create_backbone("resnet20")
    other.load_state_dict(backbone.state_dict())
    assert cache(tmp_path, other).store.folder == first.store.folder
    for name in ("network.stage3.2.conv2.weight", "network.stem_norm.running_mean"):
        value = other.state_dict()[name]
        first_entry = (0,) * value.dim()
        value[first_entry] += 1e-3
        changed = cache(tmp_path, other)
        assert changed.store.folder != first.store.folder
        assert len(changed.missing([(pictures, 1)])) == 6
        value[first_entry] = backbone.state_dict()[name][first_entry]
    assert cache(tmp_path, other).store.folder == first.store.folder


def test_networks_that_differ_do_not_share_even_if_their_weights_are_equal(tmp_path: Path, backbone: Backbone) -> None:
    twin = create_backbone("resnet20")
    twin.load_state_dict(backbone.state_dict())
    twin.name = "resnet20 with other padding"
    assert cache(tmp_path, twin).store.folder != cache(tmp_path, backbone).store.folder


def test_another_input_makes_another_store(tmp_path: Path, backbone: Backbone) -> None:
    first = FeatureCache(tmp_path, backbone, backbone.spec)
    for change in ({"resize": 36}, {"interpolation": "bicubic"}, {"size": 24}):
        other = FeatureCache(tmp_path, backbone, replace(backbone.spec, **change))  # type: ignore[arg-type]
        assert other.store.folder != first.store.folder
    assert other.store.shape == (36, 64)


def test_views_are_the_same_whoever_computes_them(tmp_path: Path, folder: Path, backbone: Backbone) -> None:
    pictures = data.load(folder)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one = cache(tmp_path / "one", backbone)
    assert len(fill(one, pictures, views=3, workers=0)) == 18
    assert torch.equal(torch.get_rng_state(), state)
    other = cache(tmp_path / "other", backbone)
    backwards = pictures.take(range(5, -1, -1))
    fill(other, backwards.take([1, 3]), views=2, workers=1)
    fill(other, backwards, views=3, workers=2)
    for view in range(3):
        torch.testing.assert_close(rows(one, pictures, view), rows(other, pictures, view), rtol=1e-2, atol=1e-3)
    views = torch.stack([rows(one, pictures, view) for view in range(3)])
    assert all((views[a] - views[b]).abs().amax((1, 2)).min() > 0.1 for a, b in ((0, 1), (0, 2), (1, 2)))


def test_what_makes_a_view_another(tmp_path: Path, folder: Path, backbone: Backbone) -> None:
    pictures = data.load(folder)
    first = cache(tmp_path, backbone)
    assert len(fill(first, pictures, views=2)) == 12
    for other in (
        cache(tmp_path, backbone, seed=1),
        cache(tmp_path, backbone, crop="pixels"),
        cache(tmp_path, backbone, flip=False),
    ):
        assert {view.number for view in other.missing([(pictures, 2)])} == {1}  # view 0 has no chance in it
        fill(other, pictures, views=2)
        assert not torch.equal(rows(other, pictures, 1), rows(first, pictures, 1))
    assert fill(cache(tmp_path, backbone), pictures, views=2) == []


@pytest.mark.parametrize("workers", [0, 1])
def test_an_interrupted_fill_goes_on_where_it_was(
    workers: int, tmp_path: Path, folder: Path, backbone: Backbone
) -> None:
    pictures = data.load(folder)
    cached = cache(tmp_path, backbone)

    def stop(_: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        cached.fill(cached.missing([(pictures, 1)]), workers=workers, tick=stop)
    again = cache(tmp_path, backbone)
    assert fill(again, pictures) == [("class1/1.png", 0), ("class1/2.png", 0)]
    whole = cache(tmp_path / "whole", backbone)
    fill(whole, pictures)
    assert torch.equal(rows(again, pictures), rows(whole, pictures))


def test_a_picture_that_goes_away_is_named(tmp_path: Path, folder: Path, backbone: Backbone) -> None:
    pictures = data.load(folder)
    cached = cache(tmp_path, backbone)
    missing = cached.missing([(pictures, 1)])
    (folder / "class1" / "2.png").unlink()
    with pytest.raises(UnreadablePicture, match=r"2\.png: no such file"):
        cached.fill(missing, workers=0, tick=lambda _: None)
    assert len(cache(tmp_path, backbone).missing([(pictures.take(range(5)), 1)])) == 1  # a batch of four is kept
    with pytest.raises(UnreadablePicture, match=r"2\.png: cannot be read"):
        cache(tmp_path, backbone).missing([(data.load(folder, check=False), 1), (pictures.take([5]), 1)])


class Painted:
    """A reader of one plain picture."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __call__(self, index: int) -> Image.Image:
        return Image.new("RGB", (32, 32), (self.value, index, 0))

    def key(self, index: int) -> str:
        return f"painted {self.value} {index}"


def painted(value: int) -> Pictures:
    return Pictures("painted", ("a",), np.zeros(1, np.int64), ("a",), Painted(value), np.zeros(1, np.int64))


def test_tables_that_come_and_go_are_not_confused(tmp_path: Path, backbone: Backbone) -> None:
    cached = cache(tmp_path, backbone)
    assert sum(len(fill(cached, painted(value))) for value in range(8)) == 8


def test_features_that_do_not_fit_are_an_error(tmp_path: Path, folder: Path) -> None:
    torch.manual_seed(0)
    loud = create_backbone("resnet20")
    with torch.no_grad():
        loud.network.stage3[2].norm2.weight.fill_(1e6)
    with pytest.raises(ValueError, match="do not fit half precision"):
        fill(cache(tmp_path, loud), data.load(folder))


def test_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOKALIKE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "lookalike"
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/caches")
    assert cache_folder() == Path("/var/caches/lookalike")
    monkeypatch.setenv("LOOKALIKE_CACHE", "/data/features")
    assert cache_folder() == Path("/data/features")
