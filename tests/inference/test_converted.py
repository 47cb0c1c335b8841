"""A converted model answers like the model, without torch; damaged ones are noticed and torch computes instead."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lookalike import index, pooling
from lookalike.cli import main
from lookalike.index.storage import BrokenIndex
from lookalike.inference.converted import ConvertedModel
from lookalike.inference.engine_name import EngineName
from lookalike.inference.model import TrainedModel, load
from lookalike.inference.preprocess import to_arrays, to_inputs
from lookalike.models import Embedder, create_backbone, save_model
from lookalike.models.input_spec import InputSpec

HEAVY = ("torch", "timm", "torchvision", "pandas", "matplotlib", "pymilvus")


@pytest.fixture(scope="module", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LOOKALIKE_ENGINE", raising=False)
        patch.setenv("LOOKALIKE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def make_run(folder: Path, pooling_name: str = "gsp", normalise: str = "l2") -> Path:
    torch.manual_seed(0)
    settings = {"num_prototypes": 4} if pooling_name == "gsp" else {}
    backbone = create_backbone("resnet8-half", weights="none")
    embedder = Embedder(backbone, 8, pooling_name, settings, normalise)  # type: ignore[arg-type]
    save_model(embedder, folder)
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for number in range(12):
        small = rng.integers(0, 256, (4 + number, 5, 3), np.uint8)
        Image.fromarray(small).resize((90 + number, 70), Image.Resampling.BICUBIC).save(folder / f"{number}.jpg")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("run"))


@pytest.fixture
def idx_path(run: Path, pictures: Path, tmp_path: Path) -> Path:
    with index.create(tmp_path / "mine.idx", run) as idx:
        index.sync(idx, load(run, "cpu"), pictures)
    return tmp_path / "mine.idx"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was logged, except for the lines that announce a conversion."""
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("lookalike")]
    return [message for message in messages if not message.startswith("converting ")]


@pytest.mark.parametrize("bgr255", [False, True])
def test_numbers_equal_those_of_torch_bit_for_bit(bgr255: bool) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 17, 19, 3), np.uint8)
    spec = InputSpec(bgr255=bgr255, mean=(104, 117, 128), std=(1, 2, 3)) if bgr255 else InputSpec()
    np.testing.assert_array_equal(to_arrays(pixels, spec), to_inputs(pixels, spec).numpy())
    with pytest.raises(ValueError, match="pixels must be uint8"):
        to_arrays(pixels.astype(np.float32), spec)  # type: ignore[arg-type]


CASES = [("gsp", "l2", "openvino"), ("average", "clip", "openvino"), ("delf", "l2", "openvino")]


@pytest.mark.parametrize(("pooling_name", "normalise", "engine"), [*CASES, ("gsp", "l2", "onnxruntime")])
def test_vectors_neighbours_and_weights_agree(
    pooling_name: str, normalise: str, engine: EngineName, pictures: Path, tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", pooling_name, normalise)
    model = load(run, "cpu", "torch")
    files = sorted(pictures.iterdir())
    with index.create(tmp_path / "mine.idx", run, engine=engine) as idx:
        index.sync(idx, model, pictures)
        converted = idx.model(engine=engine)
        assert isinstance(converted, ConvertedModel)
        assert (converted.engine, converted.dim, converted.distance) == (engine, model.dim, model.distance)
        assert converted.settings() == model.settings()
        expected, vectors = model.embed(files), converted.embed(files)
        assert np.abs(vectors - expected).max() <= 1e-4 * np.abs(expected).max()
        for fast, slow in zip(idx.search(vectors, 12), idx.search(expected, 12), strict=True):
            assert [hit.item.id for hit in fast] == [hit.item.id for hit in slow]
        assert converted.has_weights == pooling.find(pooling_name).has_weights
        if converted.has_weights:
            for fast_one, slow_one in zip(converted.explain(files), model.explain(files), strict=True):
                np.testing.assert_allclose(fast_one.weights, slow_one.weights, atol=1e-5)
                assert (fast_one.attributes is None) == (slow_one.attributes is None)
        else:
            with pytest.raises(ValueError, match="does not weigh places"):
                converted.explain(files[0])
        assert repr(converted).startswith("ConvertedModel(resnet8-half, converted: ")
        converted.load_trained = None
        match = converted.match(files[0], files[1])
        np.testing.assert_allclose(match.matrix, model.match(files[0], files[1]).matrix, atol=1e-5)
        first, second = vectors[:2].astype(np.float64)
        cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
        assert abs(match.matrix.sum() - cosine) < 1e-6


@pytest.mark.parametrize("engine", ["openvino", "onnxruntime"])
def test_whole_pictures_agree_in_any_shape(engine: EngineName, run: Path, pictures: Path, tmp_path: Path) -> None:
    model = load(run, "cpu", "torch", view="whole")
    with index.create(tmp_path / "whole.idx", model, engine=engine) as idx:
        converted = idx.model(engine=engine)
    assert isinstance(converted, ConvertedModel)
    square, wide, tall = (Image.open(min(pictures.iterdir())).resize(size) for size in ((50, 50), (210, 60), (40, 95)))
    for picture in (square, wide, tall):
        expected = model.embed(picture)
        assert np.abs(converted.embed(picture) - expected).max() <= 1e-4 * np.abs(expected).max()
        fast, slow = converted.explain(picture), model.explain(picture)
        assert fast.grid.shape == slow.grid.shape
        np.testing.assert_allclose(fast.weights, slow.weights, atol=1e-5)
        match = converted.match(square, picture)
        np.testing.assert_allclose(match.matrix, model.match(square, picture).matrix, atol=1e-5)
        first, second = converted.embed([square, picture]).astype(np.float64)
        assert abs(match.matrix.sum() - first @ second) < 1e-6


def test_a_match_that_does_not_convert_loads_torch(
    run: Path, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no such operator\nmore")

    files = sorted(pictures.iterdir())[:2]
    with monkeypatch.context() as patch:
        patch.setattr("lookalike.inference.write_converted._Contributions.forward", fail)
        patch.setenv("LOOKALIKE_CACHE", str(tmp_path / "cache"))
        idx = index.create(tmp_path / "odd.idx", run)
    with idx:
        converted = idx.model()
        assert isinstance(converted, ConvertedModel)
        assert converted.places_file is None
        assert [line for line in warnings_of(caplog) if "the match of gsp cannot be converted" in line]
        expected = load(run, "cpu", "torch").match(*files)
        np.testing.assert_allclose(converted.match(*files).matrix, expected.matrix, atol=1e-6)
        assert idx.convert_model()  # the next lookalike index adds it
        assert idx.model().places_file is not None  # type: ignore[attr-defined]


def test_search_and_help_do_not_import_torch(idx_path: Path, pictures: Path) -> None:
    code = (
        "import json, sys\n"
        "from lookalike.cli import main\n"
        "code = main(sys.argv[1:])\n"
        f"print(json.dumps([code, [name for name in {HEAVY} if name in sys.modules]]))\n"
    )
    picture = str(pictures / "3.jpg")
    search = ["search", str(idx_path), picture, "--include-query", "--json"]
    for words in (search, [*search, "--explain"], ["--help"], ["search", "--help"], ["serve", "--help"]):
        done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
        assert json.loads(done.stdout.splitlines()[-1]) == [0, []], words
        assert not done.stderr
        if words[0] == "search" and len(words) > 2:
            hits = json.loads(done.stdout.splitlines()[0])["hits"]
            assert hits[0]["path"] == picture
            assert hits[0]["distance"] < 1e-6


def test_the_server_does_not_import_torch(idx_path: Path) -> None:
    code = (
        "import sys\n"
        "from lookalike import index\n"
        "from lookalike.server import create_app\n"
        f"with index.open({str(idx_path)!r}) as idx:\n"
        "    create_app(idx, idx.model())\n"
        f"print([name for name in {HEAVY} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_an_index_with_a_converted_model_is_updated_by_its_folder(
    idx_path: Path, pictures: Path, tmp_path: Path
) -> None:
    shutil.copytree(pictures, tmp_path / "more")
    Image.new("RGB", (50, 40), "red").save(tmp_path / "more" / "new.png")
    assert main(["index", str(tmp_path / "more"), "--out", str(idx_path)]) == 0
    with index.open(idx_path) as idx:
        assert isinstance(idx.model(), ConvertedModel)
        assert idx.count() == 25


@pytest.mark.parametrize("file", ["head.xml", "backbone.bin", "engine.json"])
def test_a_damaged_converted_model_is_not_used(file: str, idx_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = idx_path / "model" / "engine" / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)
    with index.open(idx_path) as idx:
        assert isinstance(idx.model(), TrainedModel)
        assert len(warnings_of(caplog)) == 1
        assert "torch is loaded instead" in caplog.text
        assert idx.convert_model()
        assert isinstance(idx.model(), ConvertedModel)


def test_the_models_own_files_are_checked(idx_path: Path) -> None:
    weights = idx_path / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-5] ^= 1
    weights.write_bytes(content)
    with index.open(idx_path) as idx, pytest.raises((BrokenIndex, ValueError), match="damaged"):
        idx.model()


def test_an_older_index_takes_torch_until_it_is_updated(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with index.create(tmp_path / "old.idx", run, engine="torch") as idx:
        assert not (tmp_path / "old.idx" / "model" / "engine").exists()
        assert isinstance(idx.model(engine="torch"), TrainedModel)
        assert not warnings_of(caplog)
        assert isinstance(idx.model(), TrainedModel)
        assert "has no converted model, torch is loaded instead" in caplog.text
        assert idx.convert_model()
        assert isinstance(idx.model(), ConvertedModel)
        assert isinstance(idx.model(engine="onnxruntime"), TrainedModel)


def test_a_pooling_that_does_not_convert_leaves_torch(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no such operator\nmore")

    monkeypatch.setattr("lookalike.inference.write_converted.convert_once", fail)
    with index.create(tmp_path / "odd.idx", run) as idx:
        assert warnings_of(caplog) == [f"{idx.path} gets no converted model, queries load torch: no such operator"]
        assert isinstance(idx.model(), TrainedModel)
