"""The cosine of two pictures as a sum over pairs of places, held against plain loops over the network's own outputs."""

from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lookalike import pooling
from lookalike.inference.heatmap import Box, crop_box
from lookalike.inference.match import Places, adds_up, can_match, draw_match, find_regions, match_places, match_report
from lookalike.inference.model import TrainedModel
from lookalike.models import Embedder, create_backbone

SUMS = [
    ("average", {}),
    ("gsp", {"num_prototypes": 4}),
    ("gsp", {"num_prototypes": 4, "background": True, "radius": 3.0}),
    ("attention", {"hidden": 4}),
    ("delf", {"hidden": 4}),
    ("delf", {"hidden": 4, "unit_features": False}),
    ("simpool", {"power": None}),
    ("cbam", {}),
    ("crow", {}),
    ("smk", {}),
]
NO_SUMS = ["gem", "max", "lse", "simpool", "netvlad", "bilinear", "weldon", "average+max", "gem+gsp", "max+gsp", "gsop"]


def model_with(name: str, settings: dict[str, Any] | None = None, normalise: Any = "l2") -> TrainedModel:
    torch.manual_seed(3)
    backbone = create_backbone("resnet20", weights="none")
    dim = 16
    embedder = Embedder(backbone, dim, name, settings or {}, normalise)
    for parameter in embedder.head.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return TrainedModel(embedder, "torch")


def pictures() -> list[Image.Image]:
    rng = np.random.default_rng(5)
    return [Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)) for size in ((40, 64, 3), (50, 32, 3))]


@pytest.mark.parametrize(("name", "settings"), SUMS)
def test_the_matrix_sums_to_the_cosine(name: str, settings: dict[str, Any]) -> None:
    model = model_with(name, settings)
    a, b = pictures()
    match = model.match(a, b)
    first, second = model.embed([a, b]).astype(np.float64)
    assert match.matrix.shape == (64, 64)
    assert abs(match.cosine - first @ second) < 1e-6
    assert abs(match.matrix.sum() - first @ second) < 1e-6


def test_every_entry_is_the_product_of_weights_and_projected_features() -> None:
    model = model_with("gsp", {"num_prototypes": 4})
    a, b = pictures()
    match = model.match(a, b)
    places, vectors = [], []
    with torch.no_grad():
        for picture in (a, b):
            tokens = model.embedder.backbone(model.preprocess(picture)[None])
            projected = tokens[0] @ model.embedder.head.projection.weight.T  # type: ignore[union-attr]
            pooled = model.embedder.head.pooling.explain(projected[None])
            places.append((pooled.weights[0].double().numpy(), projected.double().numpy()))
            vectors.append(pooled.vector[0].double().numpy())
    norms = np.linalg.norm(vectors[0]) * np.linalg.norm(vectors[1])
    for i in (0, 13, 63):
        for j in (1, 40, 62):
            expected = places[0][0][i] * places[1][0][j] * (places[0][1][i] @ places[1][1][j]) / norms
            assert match.matrix[i, j] == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("normalise", ["clip", "none"])
def test_without_unit_vectors_it_is_still_the_cosine(normalise: str) -> None:
    model = model_with("average", normalise=normalise)
    a, b = pictures()
    first, second = model.embed([a, b]).astype(np.float64)
    cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
    assert model.match(a, b).cosine == pytest.approx(cosine, abs=1e-6)


def test_a_bias_is_shared_by_the_places() -> None:
    torch.manual_seed(3)
    embedder = Embedder(create_backbone("resnet20", weights="none"), 16, "average", bias=True)
    model = TrainedModel(embedder, "torch")
    a, b = pictures()
    first, second = model.embed([a, b]).astype(np.float64)
    assert model.match(a, b).cosine == pytest.approx(first @ second, abs=1e-6)


def test_a_file_is_matched_as_it_is_embedded(tmp_path: Path) -> None:
    """A large JPEG is decoded at reduced size, for both alike."""
    files = []
    for number, picture in enumerate(pictures()):
        files.append(tmp_path / f"{number}.jpg")
        picture.resize((640, 480)).save(files[-1])
    model = model_with("average")
    first, second = model.embed(files).astype(np.float64)
    match = model.match(*files)
    assert match.cosine == pytest.approx(first @ second, abs=1e-6)
    assert match.box_a.height == 480


@pytest.mark.parametrize("name", NO_SUMS)
def test_other_poolings_are_refused_by_name(name: str) -> None:
    settings = {"num_prototypes": 4} if name in ("gem+gsp", "max+gsp", "netvlad") else {}
    model = model_with(name, settings)
    assert not model.can_match
    with pytest.raises(ValueError, match=f"pooling {name.replace('+', '.')} is not a weighted sum"):
        model.match(*pictures())


def test_every_pooling_is_one_or_the_other() -> None:
    """And the settings of a model say so without torch."""
    for name in pooling.names():
        settings = {"num_prototypes": 4} if "num_prototypes" in signature(pooling.find(name)).parameters else {}
        layer = pooling.create(name, dim=16, **settings)
        assert can_match({"name": name, "settings": settings}) == layer.is_weighted_sum


def test_a_zero_vector_is_refused() -> None:
    zero = Places(np.zeros((4, 2)), (2, 2), Box(0, 0, 1, 1))
    with pytest.raises(ValueError, match="no cosine to explain"):
        match_places(zero, zero)


def test_regions_are_the_blocks_of_a_block_matrix() -> None:
    matrix = np.full((16, 16), 1e-4)
    matrix[np.ix_([5, 6], [9, 10])] = 0.1
    matrix[np.ix_([1, 2], [3])] = 0.1
    regions = find_regions(matrix)
    assert (regions[0].cells_a, regions[0].cells_b) == ([5, 6], [9, 10])
    assert (regions[1].cells_a, regions[1].cells_b) == ([1, 2], [3])
    assert regions[0].share == pytest.approx(0.4 / matrix.sum())
    assert find_regions(-matrix) == []


def test_shares_of_a_small_cosine_do_not_add_up() -> None:
    """Pairs with negative products take most of the cosine away again: parts of 110 and 120 percent are left."""
    matrix = np.array([[0.5, 0, -0.3], [0, 0.5, -0.25], [0, 0, 0]])
    shares = [region.share for region in find_regions(matrix)]
    assert shares == pytest.approx([0.5 / 0.45] * 2)
    assert not adds_up(0.9, shares)
    assert not adds_up(1.2, [0.1])
    assert adds_up(1.0, [0.5, 0.5])


def test_the_share_inside_and_the_drawing() -> None:
    model = model_with("gsp", {"num_prototypes": 4})
    a, b = pictures()
    match = model.match(a, b)
    inside = np.zeros((8, 8), bool)
    inside[1:7, 1:7] = True
    cells = np.flatnonzero(inside)
    assert match.inside_share == pytest.approx(match.matrix[np.ix_(cells, cells)].sum() / match.cosine)
    assert match.inside_area == pytest.approx((36 / 64) ** 2)
    report = match_report(match, a.size, b.size)
    box = crop_box(model.spec, 64, 40)
    assert report["a"]["box"] == pytest.approx([box.left / 64, box.top / 40, box.width / 64, box.height / 40])
    assert draw_match(match, a, b, 60).size == (96 + 3 + round(60 * 32 / 50), 60)
