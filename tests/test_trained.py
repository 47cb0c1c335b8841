"""A trained model on whatever people call a picture."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import lookalike
from lookalike import data
from lookalike.data.pictures import UnreadablePicture
from lookalike.data.transforms import evaluation_transform
from lookalike.models import Embedder, create_backbone, save_model
from lookalike.trained import TrainedModel, load


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
    transform = evaluation_transform(model.embedder.backbone.spec)
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
