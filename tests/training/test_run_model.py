"""The model of a run: its input, and the start of the head from pictures and from cached features."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lookalike import data
from lookalike._util.progress import Display
from lookalike._util.signals import Stopped, StopRequest
from lookalike.data.pictures import Pictures
from lookalike.data.sampler import ClassBatches
from lookalike.geometry import clip
from lookalike.inference.feature_cache import FeatureCache
from lookalike.models import Embedder, create_backbone
from lookalike.training import model as module
from lookalike.training.features import FeatureFeed, PictureFeed
from lookalike.training.model import create_embedder, start_head
from lookalike.training.settings import Settings

PCA = Settings(start="pca", dim=8, freeze_backbone=False)


@pytest.fixture(scope="module")
def pictures(class_folders: Path) -> Pictures:
    return data.load(class_folders)


def embedder(num_prototypes: int = 8, pooling: str = "gsp", **pooling_settings: object) -> Embedder:
    torch.manual_seed(0)
    settings = {"num_prototypes": num_prototypes, **pooling_settings} if pooling == "gsp" else {}
    return Embedder(create_backbone("resnet20"), dim=8, pooling=pooling, pooling_settings=settings)


def run(model: Embedder, pictures: Pictures, settings: Settings, stop: StopRequest | None = None) -> str:
    batches = ClassBatches(pictures.labels, 4, 2)
    feed = PictureFeed(pictures, model.input_spec, batches, workers=0, crop="area", flip=True)
    return start_head(model, feed, pictures, settings, Display(stop or StopRequest(), quiet=True))


@torch.no_grad()
def averages(model: Embedder, pictures: Pictures) -> torch.Tensor:
    """Mean local features (n, C), picture by picture."""
    return places(model, pictures).mean(1)


@torch.no_grad()
def places(model: Embedder, pictures: Pictures) -> torch.Tensor:
    """All local features (n, N, C)."""
    batches = ClassBatches(pictures.labels, 4, 2)
    feed = PictureFeed(pictures, model.input_spec, batches, workers=0)
    return model.eval().backbone(torch.cat(list(feed.evaluation(pictures))))


def test_random_leaves_all_as_it_is(pictures: Pictures) -> None:
    model = embedder()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert run(model, pictures, replace(PCA, start="random")) == "start: random weights"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_projection_keeps_the_principal_directions(pictures: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_POSITIONS", 64)  # all of them
    model = embedder()
    text = run(model, pictures, PCA)
    assert "start: 8 principal directions of 64, which hold " in text
    assert text.endswith("local features have a median norm of 2.00")
    assert model.head.projection is not None
    weight = model.head.projection.weight.detach()
    gram = weight @ weight.T
    torch.testing.assert_close(gram, gram[0, 0] * torch.eye(8), rtol=1e-4, atol=1e-5)  # orthogonal, one length
    points = places(model, pictures).flatten(0, 1).double()
    _, sizes, directions = torch.linalg.svd(points, full_matrices=False)
    unit = (weight / weight.norm(dim=1, keepdim=True)).double()
    torch.testing.assert_close((unit @ directions[:8].T).abs(), torch.eye(8).double(), rtol=0, atol=1e-2)
    assert f"which hold {(sizes[:8] ** 2).sum() / (sizes**2).sum():.1%};" in text


def test_median_norm_is_what_was_asked_for(pictures: Pictures) -> None:
    assert "median norm of 3.50" in run(embedder(), pictures, replace(PCA, median_norm=3.5))


def test_prototypes_are_averages_of_pictures(pictures: Pictures) -> None:
    model = embedder()
    run(model, pictures, PCA)
    prototypes = model.head.pooling.prototypes.detach()
    candidates = clip(model.head.project(averages(model, pictures)).detach())
    distances = torch.cdist(prototypes, candidates)
    assert distances.amin(1).max() < 1e-3
    assert len(distances.argmin(1).unique()) == 8


def test_prototypes_are_on_the_unit_sphere_also_where_features_stay_inside(pictures: Pictures) -> None:
    short, usual = embedder(), embedder()
    assert "median norm of 0.70" in run(short, pictures, replace(PCA, median_norm=0.7))
    run(usual, pictures, PCA)
    torch.testing.assert_close(short.head.pooling.prototypes, usual.head.pooling.prototypes)


def test_prototypes_from_places(pictures: Pictures) -> None:
    from_pictures, from_places = embedder(), embedder()
    run(from_pictures, pictures, PCA)
    text = run(from_places, pictures, replace(PCA, prototypes_from="places"))
    assert not torch.equal(from_places.head.pooling.prototypes, from_pictures.head.pooling.prototypes)
    assert "too few" not in text


def test_few_pictures_are_enough(pictures: Pictures) -> None:
    """64 prototypes are the default, and somebody begins with a dozen pictures."""
    model = embedder(num_prototypes=64)
    text = run(model, pictures.take(range(12)), PCA)
    assert text.endswith("; prototypes from places, as 12 pictures are too few for 64")
    assert len(model.head.pooling.prototypes.unique(dim=0)) == 64


@pytest.mark.parametrize("init", ["random", "k-centre"])
def test_what_was_said_of_the_prototypes_is_kept(init: str, pictures: Pictures) -> None:
    model = embedder(init=init, memory=16)
    before = model.head.pooling.prototypes.detach().clone()
    run(model, pictures, replace(PCA, pooling_settings={"init": init}))
    assert model.head.pooling.ready
    assert torch.equal(model.head.pooling.prototypes, before) == (init == "random")


def test_other_poolings_start_too(pictures: Pictures) -> None:
    model = embedder(pooling="average")
    assert run(model, pictures, PCA).startswith("start: 8 principal directions")


def test_cached_features_start_as_the_pictures_do(pictures: Pictures, tmp_path: Path) -> None:
    from_pictures, from_features = embedder(), embedder()
    run(from_pictures, pictures, PCA)
    cache = FeatureCache(tmp_path, from_features.backbone, from_features.input_spec)
    cache.fill(cache.missing([(pictures, 1)]), workers=0, tick=lambda _: None)
    cache.store.refresh()
    feed = FeatureFeed(pictures, cache, ClassBatches(pictures.labels, 4, 2), views=1)
    settings = replace(PCA, freeze_backbone=True)
    start_head(from_features, feed, pictures, settings, Display(StopRequest(), quiet=True))
    for name in ("projection.weight", "pooling.prototypes"):
        one, other = (dict(model.head.named_parameters())[name] for model in (from_pictures, from_features))
        torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)


def test_the_seed_chooses_the_sample(pictures: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "START_PICTURES", 16)
    models = [embedder() for _ in range(3)]
    state = torch.get_rng_state()
    for model, seed in zip(models, (0, 0, 1), strict=True):
        run(model, pictures, replace(PCA, seed=seed))
    assert torch.equal(torch.get_rng_state(), state)
    weights = [model.head.projection.weight for model in models if model.head.projection is not None]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_it_can_be_stopped(pictures: Pictures) -> None:
    stop = StopRequest()
    stop.requested = 15
    with pytest.raises(Stopped):
        run(embedder(), pictures, PCA, stop)


def test_pictures_are_resized_and_cropped_as_asked() -> None:
    def sizes(**settings: object) -> tuple[int, int]:
        spec = create_embedder(Settings(backbone="resnet20", freeze_backbone=False, **settings)).input_spec  # type: ignore[arg-type]
        return spec.resize_to, spec.size

    assert sizes() == (32, 32)
    assert sizes(size=24) == (24, 24)
    assert sizes(size=24, resize=40) == (40, 24)
    assert sizes(size=24, resize=40, crop="none") == (40, 24)
    assert sizes(size=40, crop="none") == (40, 40)
    with pytest.raises(ValueError, match="resize must be at least 32"):
        sizes(resize=20)


def test_the_start_is_measured_by_what_is_projected_to() -> None:
    """Eight prototypes of 16-D make 128-D: 16 principal directions are enough."""

    def directions(dim: int, pooling: str, **settings: int) -> int:
        made = Settings(
            backbone="resnet20", freeze_backbone=False, start="pca", dim=dim, pooling=pooling, pooling_settings=settings
        )
        projection = create_embedder(made).head.projection
        assert projection is not None
        return len(projection.weight)

    assert directions(128, "netvlad", num_prototypes=8) == 16
    assert directions(64, "gsp") == 64
    with pytest.raises(ValueError, match="resnet20 has 64 principal directions, which cannot start 128"):
        directions(128, "gsp")
