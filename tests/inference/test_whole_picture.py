"""Seeing the whole picture: what the sides hold counts, and every place counts once."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lookalike import index
from lookalike.cli import main
from lookalike.data.cropping import CropSize, crop_picture, tiles, whole_size
from lookalike.inference.model import TrainedModel, load
from lookalike.inference.preprocess import to_inputs
from lookalike.models import Embedder, create_backbone, save_model
from lookalike.training.checkpoint import RunFolder
from lookalike.training.settings import Settings

SIDE = 32
CELLS = 4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = create_backbone("resnet8-half", weights="none")
        settings = {"num_prototypes": 4, "init": "random"}
        save_model(Embedder(backbone, 8, "gsp", settings, "l2", backbone.spec.resized(SIDE)), folder)
    return folder


@pytest.fixture(scope="module")
def model(run: Path) -> TrainedModel:
    return load(run, "cpu", "torch", view="whole")


def noise(width: int, height: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def pair() -> tuple[np.ndarray, np.ndarray]:
    """Two pictures of 3:1 that differ only at the sides."""
    first, second = noise(96, 32), noise(96, 32, seed=1)
    second[:, 32:64] = first[:, 32:64]
    return first, second


def test_pictures_that_differ_at_the_sides_differ(run: Path, model: TrainedModel) -> None:
    for turn in (np.asarray, lambda picture: picture.transpose(1, 0, 2)):
        first, second = (np.ascontiguousarray(turn(picture)) for picture in pair())
        a, b = model.embed([first, second])
        assert 1 - a @ b > 1e-4
        a, b = load(run, "cpu", view="crop").embed([first, second])
        assert a @ b == pytest.approx(1, abs=1e-6)


@given(cells=st.integers(1, 16), size=st.integers(16, 300), width=st.integers(1, 4000), height=st.integers(1, 4000))
def test_tiles_take_every_cell_once(cells: int, size: int, width: int, height: int) -> None:
    spec = CropSize(size, size, "bilinear", cells)
    resized = whole_size(spec, width, height)
    assert min(resized) == size
    assert max(resized) <= 10 * size + 1
    all_cells = round(max(resized) * cells / size)
    taken = []
    for tile in tiles(spec, max(resized)):
        assert 0 <= tile.first < tile.last <= cells
        assert tile.start + size <= max(resized)
        start = round(tile.start * cells / size)
        taken += range(start + tile.first, start + tile.last)
    if size >= 2 * cells:  # pixels tell cells apart
        assert taken == list(range(all_cells))


def test_local_features_by_hand(model: TrainedModel) -> None:
    picture = noise(56, 32)
    crop = crop_picture(model.spec, Image.fromarray(picture))
    assert crop.shape == (32, 56, 3)
    maps = model.maps(torch.from_numpy(crop)[None])
    assert maps.shape[1:3] == (CELLS, 7)
    backbone = model.embedder.backbone
    with torch.inference_mode():
        left = backbone.maps(to_inputs(crop[None, :, :32], model.spec))
        right = backbone.maps(to_inputs(crop[None, :, 24:], model.spec))
    np.testing.assert_allclose(maps[:, :, :4], left, atol=1e-5)
    np.testing.assert_allclose(maps[:, :, 4:], right[:, :, 1:], atol=1e-5)


def test_weights_cover_the_whole_picture(model: TrainedModel) -> None:
    for picture in (noise(96, 32), noise(20, 70), noise(32, 32)):
        explained = model.explain(picture)
        height, width = picture.shape[:2]
        assert explained.box == (0, 0, width, height)
        assert explained.weights.shape == (height, width)
        assert explained.weights.sum(dtype=np.float64) == pytest.approx(1, abs=1e-5)
    assert [e.grid.shape for e in model.explain([noise(96, 32), noise(32, 32)])] == [(CELLS, 12), (CELLS, CELLS)]


def test_order_and_table_with_mixed_shapes(model: TrainedModel) -> None:
    pictures = [noise(96, 32), noise(32, 32), noise(33, 32), noise(20, 70), noise(96, 32, 5)]
    alone = np.concatenate([model.embed(picture) for picture in pictures])
    np.testing.assert_array_equal(model.embed(pictures, batch_size=2), alone)


def test_choice_is_stored(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "wide"
    folder.mkdir()
    for name, picture in zip(("a.png", "b.png"), pair(), strict=True):
        Image.fromarray(picture).save(folder / name)
    for view, cells in ((None, CELLS), ("whole", CELLS), ("crop", None)):  # None: they are longer than 2:1
        out = tmp_path / f"{view}.idx"
        words = ["index", str(run), str(folder), "--out", str(out), "--device", "cpu", "--cache", "none"]
        if view:
            words += ["--view", view]
        assert main(words) == 0
        assert main(words[:9]) == 0  # the view of the index is used again
        assert json.loads((out / "model" / "model.json").read_text())["input"].get("cells") == cells
        with index.open(out) as idx:
            files = [item.file for item in idx.items()]
            vectors = idx.vectors([item.id for item in idx.items()])
            np.testing.assert_array_equal(idx.model("cpu").embed(files), vectors)
    of_index = load(tmp_path / "whole.idx" / "model", "cpu")  # the choice is stored with the model
    whole = load(run, "cpu", view="whole")
    np.testing.assert_array_equal(whole.embed(folder / "a.png"), of_index.embed(folder / "a.png"))
    capsys.readouterr()


@pytest.mark.parametrize(("stored", "sees_whole"), [("whole", True), ("crop", False), (None, False)])
def test_an_index_sees_what_the_settings_of_its_run_say(
    run: Path, class_folders: Path, tmp_path: Path, stored: str | None, sees_whole: bool
) -> None:
    """A run of an earlier version says nothing: its calibration is for the centre crop."""
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    RunFolder(copy).write_settings(Settings(data="pictures", out=copy, view=stored))  # type: ignore[arg-type]
    out = tmp_path / "a.idx"
    assert main(["index", str(copy), str(class_folders), "--out", str(out), "--device", "cpu"]) == 0
    other = tmp_path / "other.idx"
    with index.create(other, load(run, "cpu", view="crop" if sees_whole else "whole")) as idx:
        index.sync(idx, idx.trained_model("cpu"), class_folders)
    for words in (["--with", str(copy)], ["--with", str(copy)]):  # and goes on with it
        assert main(["index", str(other), *words, "--name", "second", "--device", "cpu"]) == 0
    with index.open(out) as idx, index.open(other) as first, first.open_model("second") as second:
        assert idx.model("cpu").spec.sees_whole == sees_whole
        assert second.model("cpu").spec.sees_whole == sees_whole


def test_an_index_of_an_earlier_version_keeps_its_crop(run: Path, class_folders: Path, tmp_path: Path) -> None:
    out = tmp_path / "old.idx"
    with index.create(out, load(run, "cpu")):
        pass
    assert "cells" not in json.loads((out / "model" / "model.json").read_text())["input"]
    assert main(["index", str(run), str(class_folders), "--out", str(out), "--device", "cpu"]) == 0
    with index.open(out) as idx:
        assert not idx.model("cpu").spec.sees_whole
