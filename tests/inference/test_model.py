"""A trained model on whatever people call a picture."""

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import nn

import lookalike
from lookalike import data
from lookalike.data.pictures import UnreadablePicture
from lookalike.inference.heatmap import Box, crop_box, spread
from lookalike.inference.model import TrainedModel, embed_batches, load
from lookalike.inference.preprocess import Preprocess
from lookalike.models import Backbone, Embedder, create_backbone, save_model
from lookalike.models.input_spec import InputSpec


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    embedder = Embedder(create_backbone("resnet20"), dim=8, pooling_settings={"num_prototypes": 4})
    folder = tmp_path_factory.mktemp("run")
    save_model(embedder, folder)
    return folder


@pytest.fixture(scope="module")
def model(run: Path) -> TrainedModel:
    return lookalike.load(run, device="cpu")


@pytest.fixture(scope="module")
def files(class_folders: Path) -> list[Path]:
    return sorted(class_folders.rglob("*.png"))[::3]


@pytest.fixture(scope="module")
def expected(model: TrainedModel, files: list[Path]) -> NDArray[np.float32]:
    """By hand, one picture after the other."""
    transform = Preprocess(model.embedder.backbone.spec)
    with torch.inference_mode():
        rows = [model.embedder(transform(Image.open(file).convert("RGB"))[None]) for file in files]
    return torch.cat(rows).numpy()


def assert_vectors(got: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    assert got.shape == expected.shape
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_all_kinds_give_the_vectors_in_their_order(
    batch_size: int, model: TrainedModel, files: list[Path], expected: NDArray[np.float32]
) -> None:
    assert np.abs(expected[:, None] - expected[None]).max(-1)[~np.eye(len(files), dtype=bool)].min() > 1e-3
    kinds: list[Any] = [str, Path, Image.open, lambda file: np.asarray(Image.open(file))]
    for kind in kinds:
        assert_vectors(model.embed([kind(file) for file in files], batch_size=batch_size), expected)
    mixed = [kinds[i % 4](file) for i, file in enumerate(files)]
    assert_vectors(model.embed(mixed, batch_size=batch_size), expected)
    assert_vectors(model.embed(iter(mixed), batch_size=batch_size), expected)


def test_the_vectors_are_normalised_as_trained(model: TrainedModel, files: list[Path], tmp_path: Path) -> None:
    assert model.dim == 8
    assert model.distance == "cosine"
    np.testing.assert_allclose(np.linalg.norm(model.embed(files), axis=1), 1, atol=1e-5)
    embedder = Embedder(create_backbone("resnet20"), dim=4, pooling="average", normalise="none")
    save_model(embedder, tmp_path)
    plain = load(tmp_path)
    assert plain.distance == "l2"
    assert plain.embed(files[0]).shape == (1, 4)


def test_one_alone(model: TrainedModel, files: list[Path], expected: NDArray[np.float32]) -> None:
    image = Image.open(files[0]).convert("RGB")
    for picture in (str(files[0]), files[0], image, np.asarray(image), [files[0]]):
        assert_vectors(model.embed(picture), expected[:1])


def test_none_at_all(model: TrainedModel, class_folders: Path) -> None:
    assert_vectors(model.embed([]), np.zeros((0, 8), np.float32))
    assert_vectors(model.embed_table(data.load(class_folders).take([])), np.zeros((0, 8), np.float32))


def test_arrays_of_every_shape(model: TrainedModel, files: list[Path]) -> None:
    colour = np.asarray(Image.open(files[0]).convert("RGB"))
    grey = colour.mean(2).astype(np.uint8)
    thrice = model.embed(np.stack(3 * [grey], axis=2))
    assert_vectors(model.embed(grey), thrice)
    assert_vectors(model.embed(np.stack([colour, colour])), np.repeat(model.embed(colour), 2, axis=0))
    clear = np.dstack([colour, np.zeros_like(grey)])  # seen through, onto white
    assert_vectors(model.embed(clear), model.embed(np.full_like(colour, 255)))
    assert_vectors(model.embed(colour[:, ::-1]), model.embed(np.ascontiguousarray(colour[:, ::-1])))


def test_the_same_image_twice_is_not_decoded_by_two_threads_at_once(tmp_path: Path, model: TrainedModel) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "large.png")
    for batch_size in (1, 8):
        image = Image.open(tmp_path / "large.png")  # nothing is decoded yet
        vectors = model.embed(4 * [image], batch_size=batch_size)
        assert_vectors(vectors, np.repeat(model.embed(pixels), 4, axis=0))


def test_pictures_are_turned_upright(tmp_path: Path, model: TrainedModel) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    upright = model.embed(np.ascontiguousarray(np.rot90(pixels, -1)))
    assert_vectors(model.embed(tmp_path / "turned.png"), upright)
    assert_vectors(model.embed(Image.open(tmp_path / "turned.png")), upright)


@pytest.mark.parametrize("batch_size", [2, 64])
def test_an_unreadable_file_is_named(batch_size: int, model: TrainedModel, files: list[Path], tmp_path: Path) -> None:
    (tmp_path / "notes.jpg").write_text("not a picture")
    for name, reason in (("gone.jpg", "no such file"), ("notes.jpg", "not a picture in a known format")):
        with pytest.raises(UnreadablePicture, match=rf"{name}: {reason}$"):
            model.embed([*files[:5], tmp_path / name, files[5]], batch_size=batch_size)


@pytest.mark.parametrize(
    "picture",
    [
        np.zeros((8, 8, 3), np.float32),
        np.zeros((3, 8, 8), np.uint8),
        np.zeros((8, 8, 2), np.uint8),
        np.zeros(8, np.uint8),
        7,
        None,
    ],
)
def test_what_is_no_picture(picture: Any, model: TrainedModel) -> None:
    with pytest.raises(TypeError, match=r"^a picture must be a path, a PIL image or an array of uint8, .*, got "):
        model.embed([picture])


def test_nothing_is_no_picture_either(model: TrainedModel) -> None:
    with pytest.raises(TypeError, match=r"^a picture must be a path, .*, got NoneType"):
        model.embed(None)
    with pytest.raises(ValueError, match=r"must have pixels, got an array of shape \(3, 0, 3\)"):
        model.embed(np.zeros((3, 0, 3), np.uint8))


def test_batches_are_joined_in_order() -> None:
    batches = [torch.arange(first, min(first + 3, 7)).float() for first in range(0, 7, 3)]
    heard: list[int] = []
    vectors = embed_batches(batches, lambda x: x.half()[:, None] * 2, device=torch.device("cpu"), tick=heard.append)
    assert vectors.tolist() == [[0.0], [2.0], [4.0], [6.0], [8.0], [10.0], [12.0]]
    assert vectors.dtype == torch.float32
    assert heard == [3, 3, 1]
    first, second = embed_batches(
        batches, lambda x: (x[:, None], -x[:, None]), device=torch.device("cpu"), tick=heard.append
    )
    assert torch.equal(first, -second)
    assert first[:, 0].tolist() == list(range(7))
    assert not embed_batches(
        [torch.ones(1, requires_grad=True)], lambda x: x[:, None], device=torch.device("cpu"), tick=heard.append
    ).requires_grad


def test_batches_of_nothing(model: TrainedModel, files: list[Path]) -> None:
    with pytest.raises(ValueError, match=r"^batch_size must be at least 1, got 0$"):
        model.embed(files, batch_size=0)


def test_a_table(model: TrainedModel, class_folders: Path) -> None:
    pictures = data.load(class_folders)
    chosen = pictures.take(np.random.default_rng(0).permutation(len(pictures)))
    heard: list[int] = []
    vectors = model.embed_table(chosen, workers=0, tick=heard.append)
    assert_vectors(vectors, model.embed([class_folders / name for name in chosen.names]))
    assert sum(heard) == len(pictures)


def test_loading(run: Path, tmp_path: Path) -> None:
    trained = load(str(run))
    assert not trained.embedder.training
    assert trained.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(ValueError, match=r"holds no model: there is no model\.json$"):
        load(tmp_path)


SEEING = InputSpec(size=64, resize=72, mean=(0, 0, 0), std=(1, 1, 1))


class Colours(nn.Module):
    """Local features are the colours of squares of 8 x 8 pixels."""

    num_features = 3

    def __init__(self) -> None:
        super().__init__()
        self.squares = nn.Conv2d(3, 3, 8, 8, bias=False)
        with torch.no_grad():
            self.squares.weight.copy_(torch.eye(3)[:, :, None, None].expand(3, 3, 8, 8) / 64)

    def forward_features(self, images: torch.Tensor) -> torch.Tensor:
        maps: torch.Tensor = self.squares(images)
        return maps


@pytest.fixture(scope="module")
def finds_red() -> TrainedModel:
    """One prototype, red, and a hard choice of one place in 64."""
    settings = {"num_prototypes": 1, "keep": 1 / 64, "sharpness": 50.0}
    embedder = Embedder(Backbone("colours", Colours(), SEEING), None, pooling_settings=settings)
    with torch.no_grad():
        embedder.head.pooling.prototypes.copy_(torch.tensor([[1.0, 0, 0]]))
    return TrainedModel(embedder)


def spread_by_sampling(grid: NDArray[np.float32], box: Box, width: int, height: int, fine: int) -> NDArray[np.float64]:
    """Bilinear interpolation at ``fine`` x ``fine`` points in every pixel."""

    def sampled(values: NDArray[Any], pixels: int, start: float, extent: float) -> NDArray[np.float64]:
        points = ((np.arange(pixels * fine) + 0.5) / fine - start) / extent
        places = (np.arange(len(values)) + 0.5) / len(values)
        rows = [np.interp(points, places, column) for column in values.T]  # goes on as it is beyond its ends
        inside = (points > 0) & (points < 1)
        return (np.array(rows) * inside).reshape(-1, pixels, fine).sum(-1).T / (fine * extent / len(values))

    return sampled(sampled(grid, height, box.top, box.height).T, width, box.left, box.width).T


@pytest.mark.parametrize(("width", "height"), [(32, 32), (61, 40), (33, 95), (500, 20), (3, 50)])
def test_weights_by_hand(width: int, height: int, model: TrainedModel) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    seen = model.explain(pixels)
    images = Preprocess(model.spec)(Image.fromarray(pixels))[None]
    by_hand = model.embedder.explain(images)
    np.testing.assert_allclose(seen.grid, by_hand.weights.reshape(8, 8), atol=1e-6)
    assert seen.attributes is not None
    np.testing.assert_allclose(seen.attributes, by_hand.attributes[0], atol=1e-6)
    assert seen.weights.shape == (height, width)
    assert seen.weights.dtype == seen.grid.dtype == np.float32
    assert seen.weights.sum(dtype=np.float64) == pytest.approx(1, abs=1e-5)
    expected = spread_by_sampling(seen.grid, seen.box, width, height, fine=40)
    np.testing.assert_allclose(seen.weights, expected, atol=0.03 * expected.max())


def test_every_place_hands_out_its_own_weight_however_few_the_pixels() -> None:
    grid = np.zeros((7, 5), np.float32)
    grid[6, 1] = 1
    for width, height in ((1, 1), (2, 3), (40, 9), (300, 200)):
        weights = spread(grid, Box(0, 0, width, height), width, height)
        assert weights.sum(dtype=np.float64) == pytest.approx(1, abs=1e-6)
        centre_of_mass = (weights.sum(0) * (np.arange(width) + 0.5)).sum() / width
        if width > 2:
            assert centre_of_mass == pytest.approx(1.5 / 5, abs=0.02)


def test_spreading_over_a_long_picture_takes_memory_for_its_weights_only() -> None:
    height = 1_000_000
    tracemalloc.start()
    try:
        weights = spread(np.ones((7, 7), np.float32) / 49, crop_box(SEEING, 1, height), 1, height)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert weights.sum(dtype=np.float64) == pytest.approx(1, abs=1e-5)
    assert peak < 2 * weights.nbytes


@pytest.mark.parametrize(("width", "height"), [(40, 40), (200, 90), (70, 250), (9, 240)])
def test_the_box_is_what_the_transform_leaves(width: int, height: int) -> None:
    box = crop_box(SEEING, width, height)
    columns, rows = np.meshgrid(np.arange(width), np.arange(height))
    pixels = np.stack([columns, rows, rows], axis=2).astype(np.uint8)
    places = 255 * Preprocess(SEEING)(Image.fromarray(pixels)).numpy() + 0.5
    assert places[0].mean() == pytest.approx(box.left + box.width / 2, abs=0.3)
    assert places[1].mean() == pytest.approx(box.top + box.height / 2, abs=0.3)
    middle = places[:, 16:48, 16:48]  # at the edges of the picture a resize has nothing to mix with
    assert middle[0, 0, -1] - middle[0, 0, 0] == pytest.approx(31 * box.width / 64, abs=1)
    assert middle[1, -1, 0] - middle[1, 0, 0] == pytest.approx(31 * box.height / 64, abs=1)


@pytest.mark.parametrize(("width", "height"), [(144, 144), (300, 144), (144, 200)])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("lower", [False, True])
def test_an_object_in_a_corner(width: int, height: int, right: bool, lower: bool, finds_red: TrainedModel) -> None:
    left = (width - 128) // 2 + (128 - 16 if right else 0)  # the corners of what the crop leaves
    top = (height - 128) // 2 + (128 - 16 if lower else 0)
    pixels = np.full((height, width, 3), (0, 0, 90), np.uint8)
    pixels[top : top + 16, left : left + 16] = (255, 0, 0)
    weights = finds_red.explain(pixels).weights
    box = finds_red.explain(pixels).box
    assert box == pytest.approx(((width - 128) / 2, (height - 128) / 2, 128, 128))
    on_object = weights[top : top + 16, left : left + 16].sum()
    assert on_object > 0.7  # the rest lies on the slope to the next place
    assert weights[max(0, top - 16) : top + 32, max(0, left - 16) : left + 32].sum() > 0.98
    outside = np.ones_like(weights, dtype=bool)
    outside[(height - 128) // 2 :, (width - 128) // 2 :][:128, :128] = False
    assert outside.any()
    assert (weights[outside] == 0).all()


def test_what_the_crop_does_not_see_gets_no_weight(finds_red: TrainedModel) -> None:
    pixels = np.full((144, 288, 3), (0, 0, 90), np.uint8)
    pixels[:16, :16] = (255, 0, 0)
    seen = finds_red.explain(pixels)
    assert (seen.weights[:, :79] == 0).all()
    np.testing.assert_allclose(seen.grid, 1 / 64, atol=1e-3)


def test_weights_of_turned_pictures_are_upright(tmp_path: Path, finds_red: TrainedModel) -> None:
    pixels = np.full((144, 240, 3), (0, 0, 90), np.uint8)
    pixels[24:40, 88:104] = (255, 0, 0)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    for name in ("turned.png", "turned.jpg"):
        Image.fromarray(pixels).save(tmp_path / name, exif=exif, quality=95)
        for picture in (tmp_path / name, Image.open(tmp_path / name)):
            weights = finds_red.explain(picture).weights
            assert weights.shape == (240, 144)
            row, column = np.unravel_index(weights.argmax(), weights.shape)
            assert 88 <= row < 104
            assert 144 - 40 <= column < 144 - 24


def test_weights_of_a_large_photograph_have_its_size(tmp_path: Path, finds_red: TrainedModel) -> None:
    pixels = np.full((900, 1200, 3), (0, 0, 90), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "large.jpg")  # to embed, it would be decoded at a quarter
    assert finds_red.explain(tmp_path / "large.jpg").weights.shape == (900, 1200)


def test_weights_of_many(model: TrainedModel, files: list[Path]) -> None:
    together = model.explain(files, batch_size=3)
    assert len(together) == len(files)
    for file, seen in zip(files, together, strict=True):
        alone = model.explain(file)
        np.testing.assert_allclose(seen.weights, alone.weights, atol=1e-6)
        np.testing.assert_allclose(seen.attributes, alone.attributes, atol=1e-5)  # type: ignore[arg-type]
        assert seen.box == alone.box
    assert model.explain([]) == []
    assert isinstance(model.explain([files[0]]), list)


def test_weights_of_poolings_without(files: list[Path]) -> None:
    plain = TrainedModel(Embedder("resnet20", dim=8, pooling="gem"))
    assert plain.explain(files[0]).attributes is None
    bilinear = TrainedModel(Embedder("resnet20", dim=8, pooling="bilinear"))
    assert not bilinear.has_weights
    with pytest.raises(ValueError, match=r"^this model cannot explain: its pooling bilinear does not weigh places$"):
        bilinear.explain(files[0])
