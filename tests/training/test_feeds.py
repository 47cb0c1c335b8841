"""Feeds: features as the backbone gives them, the same stream from any step, and shares that fit together again."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from lookalike import data
from lookalike.data.pictures import Pictures
from lookalike.data.sampler import ClassBatches
from lookalike.inference.feature_cache import FeatureCache
from lookalike.inference.preprocess import Preprocess
from lookalike.models import Backbone, create_backbone
from lookalike.training import features as module
from lookalike.training.features import FeatureFeed, Feed, PictureFeed, join_shares


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    torch.manual_seed(0)
    return create_backbone("resnet20").eval()


@pytest.fixture(scope="module")
def pictures(class_folders: Path) -> Pictures:
    return data.load(class_folders)


@pytest.fixture(scope="module")
def cache(pictures: Pictures, backbone: Backbone, tmp_path_factory: pytest.TempPathFactory) -> FeatureCache:
    cached = FeatureCache(tmp_path_factory.mktemp("cache"), backbone, backbone.spec)
    cached.fill(cached.missing([(pictures, 3)]), workers=0, tick=lambda _: None)
    cached.store.refresh()
    return cached


@pytest.fixture(scope="module")
def every_view(cache: FeatureCache, pictures: Pictures) -> Tensor:
    """(views, n, N, C)"""
    return torch.stack([cache.read(cache.rows(pictures, view)) for view in range(3)])


def batches(pictures: Pictures, rank: int = 0, world_size: int = 1) -> ClassBatches:
    return ClassBatches(pictures.labels, 8, 2, seed=3, rank=rank, world_size=world_size)


def features(cache: FeatureCache, pictures: Pictures, views: int = 2, rank: int = 0, world: int = 1) -> FeatureFeed:
    return FeatureFeed(pictures, cache, batches(pictures, rank, world), views)


def images(backbone: Backbone, pictures: Pictures, rank: int = 0, world: int = 1) -> PictureFeed:
    return PictureFeed(pictures, backbone.spec, batches(pictures, rank, world), workers=0, crop="area", flip=True)


@torch.inference_mode()
def test_features_are_the_backbones_of_the_very_pictures(
    cache: FeatureCache, pictures: Pictures, backbone: Backbone
) -> None:
    feed = features(cache, pictures, views=1)
    transform = Preprocess(backbone.spec)
    for (inputs, labels, _), draws in zip(islice(feed.training(0), 3), batches(pictures), strict=False):
        chosen = [draw.index for draw in draws]
        expected = backbone(torch.stack([transform(pictures.image(i)) for i in chosen]))
        torch.testing.assert_close(inputs, expected, rtol=1e-3, atol=1e-4)
        assert labels.tolist() == pictures.labels[chosen].tolist()
        assert labels.dtype == torch.int64


def test_views_take_turns(cache: FeatureCache, pictures: Pictures, every_view: Tensor) -> None:
    feed = features(cache, pictures, views=3)
    steps = feed.sampler.steps_per_epoch()
    seen: dict[int, list[int]] = {}
    for (inputs, _, _), draws in zip(islice(feed.training(0), 3 * steps), batches(pictures), strict=False):
        for got, draw in zip(inputs, draws, strict=True):
            view = next(view for view in range(3) if torch.equal(got, every_view[view, draw.index]))
            assert view == (draw.epoch + draw.turn) % 3
            seen.setdefault(draw.index, []).append(view)
    assert all(set(views) == {0, 1, 2} for views in seen.values())
    assert len(seen) == len(pictures)


@pytest.mark.parametrize("kind", ["features", "images"])
def test_a_feed_goes_on_from_any_step(kind: str, cache: FeatureCache, pictures: Pictures, backbone: Backbone) -> None:
    make: Callable[[], Feed] = lambda: features(cache, pictures) if kind == "features" else images(backbone, pictures)  # noqa: E731
    steps = make().sampler.steps_per_epoch()
    whole = list(islice(make().training(0), steps + 3))
    for start in (1, steps - 1, steps, steps + 1):
        tail = list(islice(make().training(start), 2))
        for expected, got in zip(whole[start:], tail, strict=False):
            assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    feed = make()  # and also one that was used before
    list(islice(feed.training(0), 2))
    assert torch.equal(next(feed.training(5))[0], whole[5][0])


@pytest.mark.parametrize("kind", ["features", "images"])
def test_ranks_share_a_batch(kind: str, cache: FeatureCache, pictures: Pictures, backbone: Backbone) -> None:
    def batch(rank: int, world: int) -> tuple[Tensor, Tensor]:
        feed: Feed = (
            features(cache, pictures, 2, rank, world) if kind == "features" else images(backbone, pictures, rank, world)
        )
        return next(feed.training(1))

    whole, parts = batch(0, 1), [batch(rank, 2) for rank in (0, 1)]
    for column in (0, 1):
        assert torch.equal(torch.cat([part[column] for part in parts]), whole[column])


@pytest.mark.parametrize("kind", ["features", "images"])
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("count", [3, 19, 64])
def test_evaluation_shares_come_together_in_order(
    kind: str,
    world: int,
    count: int,
    cache: FeatureCache,
    pictures: Pictures,
    backbone: Backbone,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "EVALUATION_BATCH", 5)
    some = pictures.take(np.random.default_rng(count).permutation(len(pictures))[:count])
    feed: Feed = features(cache, pictures) if kind == "features" else images(backbone, pictures)
    whole = torch.cat(list(feed.evaluation(some))).flatten(1)
    assert len(whole) == count
    most = -(-count // world)
    shares = [torch.cat(list(feed.evaluation(some, rank, world))).flatten(1) for rank in range(world)]
    padded = [torch.nn.functional.pad(share, (0, 0, 0, most - len(share)), value=7.0) for share in shares]
    assert torch.equal(join_shares(torch.stack(padded), count), whole)
    if kind == "images":
        transform = Preprocess(backbone.spec)
        assert torch.equal(whole[-1], transform(some.image(count - 1)).flatten())
    else:
        expected = cache.read(cache.rows(some)).flatten(1)
        assert torch.equal(whole, expected)
