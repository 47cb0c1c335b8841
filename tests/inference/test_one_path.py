"""The same file has the same vector, bit for bit, from ``embed``, from an index and from the server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from numpy.typing import NDArray
from PIL import Image

from lookalike import index
from lookalike.data.files import table_of_files
from lookalike.index.folder import sync
from lookalike.inference.feature_cache import FeatureCache
from lookalike.inference.model import TrainedModel, load
from lookalike.models import Embedder, create_backbone, save_model
from lookalike.server import create_app

Vectors = NDArray[np.float32]
MODELS: dict[str, dict[str, Any]] = {
    "resnet20": {"pooling": "gsp", "pooling_settings": {"num_prototypes": 4}},
    "resnet8-half": {"pooling": "crow"},  # pools first: the projection is one of (B, C)
    "tf_efficientnet_lite0": {"pooling": "gem", "normalise": "clip"},
}
SIDES = {"tf_efficientnet_lite0": 64}
CASES = [*((name, "torch") for name in MODELS), ("resnet20", "openvino"), ("tf_efficientnet_lite0", "openvino")]
CASES.append(("tf_efficientnet_lite0", "onnxruntime"))


def exif_with_orientation(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of many kinds and sizes, more than a batch; the large JPEGs are decoded at reduced size."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)

    def noise(width: int, height: int, channels: int = 3) -> Image.Image:
        shape = (height, width) if channels == 1 else (height, width, channels)
        return Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8))

    sizes = [(32, 32), (37, 53), (61, 40), (1, 1), (400, 19), (3, 90), (317, 411), (900, 701), (200, 1500)]
    for width, height in sizes:
        noise(width, height).save(folder / f"{width}x{height}.png")
        noise(width, height).save(folder / f"{width}x{height}.jpg", quality=90)
    for orientation in (3, 6, 8):
        exif = exif_with_orientation(orientation)
        noise(45, 70).save(folder / f"turned{orientation}.png", exif=exif)
        noise(650, 470).save(folder / f"turned{orientation}.jpg", exif=exif)
    noise(50, 41, channels=1).save(folder / "grey.png")
    noise(500, 410, channels=1).save(folder / "grey.jpg")
    noise(50, 41, channels=4).save(folder / "transparent.png")
    noise(500, 410, channels=4).convert("CMYK").save(folder / "cmyk.jpg")
    noise(60, 44).convert("P").save(folder / "palette.png")
    return folder


@pytest.fixture(scope="module")
def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a model; the engine of its case is the default."""
    name, engine = request.param
    torch.manual_seed(0)
    backbone = create_backbone(name, weights="none")
    spec = backbone.spec.resized(SIDES.get(name, backbone.spec.size))
    run = tmp_path_factory.mktemp("run")
    save_model(Embedder(backbone, dim=8, input_spec=spec, **MODELS[name]), run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOKALIKE_ENGINE", engine)
        patch.setenv("LOOKALIKE_CACHE", str(tmp_path_factory.mktemp("cache")))
        assert load(run, "cpu").engine.name == engine
        yield run


@pytest.fixture(scope="module")
def model(run: Path) -> TrainedModel:
    return load(run, "cpu")


@pytest.fixture(scope="module")
def expected(model: TrainedModel, files: list[Path]) -> Vectors:
    """The vector of each file, embedded alone."""
    vectors = np.concatenate([model.embed(file) for file in files])
    assert len(np.unique(vectors, axis=0)) == len(files), "the files differ"
    return vectors


@pytest.fixture(scope="module")
def idx(
    run: Path, model: TrainedModel, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[index.Index]:
    with index.create(tmp_path_factory.mktemp("indexes") / "pictures.idx", run=run) as idx:
        sync(idx, model, folder)
        yield idx


@pytest.fixture(scope="module")
def client(idx: index.Index, run: Path) -> Iterator[TestClient]:
    with TestClient(create_app(idx, load(run, "cpu")), base_url="http://127.0.0.1") as client:
        yield client


def assert_same(got: Vectors, expected: Vectors) -> None:
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, expected)  # bit for bit: no tolerance


@pytest.mark.parametrize("batch_size", [None, 1, 2, 5, 64])
def test_batches_of_any_size(batch_size: int | None, model: TrainedModel, files: list[Path], expected: Vectors) -> None:
    assert_same(model.embed(files, batch_size=batch_size), expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_tables(workers: int, model: TrainedModel, folder: Path, files: list[Path], expected: Vectors) -> None:
    names = [file.name for file in files]
    table = table_of_files("pictures", folder, names, ["a"] * len(names))
    assert_same(model.embed_table(table, workers=workers), expected)


def test_the_index(idx: index.Index, files: list[Path], expected: Vectors) -> None:
    assert_same(idx.vectors([index.file_id(file) for file in files]), expected)


def test_post_embed(client: TestClient, files: list[Path], expected: Vectors) -> None:
    rows = []
    for file in files:
        answer = client.post("/embed", files={"picture": file.read_bytes()})
        assert answer.status_code == 200, answer.text
        rows.append(answer.json()["vector"])
    assert_same(np.array(rows, dtype=np.float32), expected)
    assert (np.array(rows) == expected.astype(np.float64)).all(), "JSON rounds nothing"


def test_post_items(run: Path, files: list[Path], expected: Vectors, tmp_path: Path) -> None:
    with (
        index.create(tmp_path / "uploads.idx", run=run) as idx,
        TestClient(create_app(idx, load(run, "cpu")), base_url="http://127.0.0.1") as client,
    ):
        ids = []
        for file in files:
            answer = client.post("/items", files={"picture": file.read_bytes()})
            assert answer.status_code == 200, answer.text
            ids.append(answer.json()["id"])
        assert_same(idx.vectors(ids), expected)


def test_the_feature_cache_up_to_half_precision(
    model: TrainedModel, folder: Path, files: list[Path], expected: Vectors, tmp_path: Path
) -> None:
    names = [file.name for file in files]
    table = table_of_files("pictures", folder, names, ["a"] * len(names))
    cache = FeatureCache(tmp_path, model.embedder.backbone, model.spec)
    cache.fill(cache.missing([(table, 1)]), workers=0, tick=lambda _: None)
    cache.store.refresh()
    cached = cache.read(cache.rows(table))
    with torch.inference_mode():
        for features, file, vector in zip(cached, files, expected, strict=True):
            inputs = model.preprocess.inputs(model.preprocess.read_crop(file)[None])
            local = model.engine.maps(inputs).flatten(1, 2)
            assert torch.equal(features, local[0].half().float())
            np.testing.assert_array_equal(model.embedder.head(local)[0], vector)


def test_pixels_in_memory_have_the_vector_of_a_file_without_losses(
    model: TrainedModel, files: list[Path], expected: Vectors
) -> None:
    """Except for JPEGs that are large enough to be decoded at reduced size: an array keeps all of its pixels."""
    lossless = [i for i, file in enumerate(files) if file.suffix == ".png"]
    images = [Image.open(files[i]) for i in lossless]
    assert_same(model.embed(images), expected[lossless])


def test_cached_features_give_the_same_vectors_again(
    model: TrainedModel,
    folder: Path,
    files: list[Path],
    expected: Vectors,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    names = [file.name for file in files]
    table = table_of_files("pictures", folder, names, ["a"] * len(names))

    def reopened() -> TrainedModel:
        cached = TrainedModel(model.embedder)
        cached.engine = model.engine
        cached.cache = cached.open_cache(tmp_path)
        return cached

    first = reopened()
    vectors = first.embed(files)
    np.testing.assert_allclose(vectors, expected, atol=2e-4)
    again = reopened()
    again.preprocess.read_crop = None  # type: ignore[assignment]  # nothing is decoded
    assert_same(again.embed(files), vectors)
    assert_same(again.embed_table(table, workers=0), vectors)
    assert first.cache is not None
    rows = next(first.cache.store.folder.glob("*.rows"))
    content = bytearray(rows.read_bytes())
    content[7] ^= 255
    rows.write_bytes(content)
    assert_same(reopened().embed(files), vectors)
    assert [record.getMessage() for record in caplog.records] == [
        f"1 row is computed again, damaged in {first.cache.store.folder}"
    ]
