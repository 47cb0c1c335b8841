"""``--precision int8``: calibrated on the pictures, measured, said, stored with the index, and used by queries."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lookalike import index
from lookalike.cli import main
from lookalike.cli.precision import CALIBRATION, MEASURED, choose_pictures, compare
from lookalike.inference.converted import ConvertedModel
from lookalike.inference.model import load
from lookalike.models import Embedder, create_backbone, save_model

pytest.importorskip("nncf")


@pytest.fixture(scope="module", autouse=True)
def environment(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LOOKALIKE_ENGINE", raising=False)
        patch.setenv("LOOKALIKE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("run")
    save_model(Embedder(create_backbone("resnet20", weights="none"), 8, "gsp", {"num_prototypes": 4}), folder)
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    for kind in range(3):
        (folder / str(kind)).mkdir()
        pattern = rng.integers(0, 256, (5, 5, 3))
        for number in range(6):
            noisy = (pattern + rng.integers(-30, 30, pattern.shape)).clip(0, 255).astype(np.uint8)
            Image.fromarray(noisy).resize((60, 50)).save(folder / str(kind) / f"{number}.png")
    return folder


def test_change_of_neighbours_and_map_by_hand() -> None:
    before = np.array([[0.0], [1], [3], [10]], np.float32)
    after = np.array([[0.0], [9], [3], [10]], np.float32)
    labels = np.array([0, 0, 1, 1])
    change = compare(before, after, labels, "l2")
    assert change.before is not None
    assert change.after is not None
    assert change.agreement == 1  # of three others, all are among the ten nearest
    assert (change.before, change.after) == (3 / 4, 0)
    assert "MAP@R 75.00 -> 0.00 (-75.00)" in str(change)
    assert compare(before, after, np.zeros(4, np.int64), "l2").before is None
    many = np.arange(30, dtype=np.float32)[:, None]
    shuffled = np.random.default_rng(0).permutation(many)
    assert compare(many, shuffled, np.zeros(30, np.int64), "l2").agreement < 0.8
    assert compare(many, many, np.zeros(30, np.int64), "l2").agreement == 1


def test_pictures_are_measured_apart_from_the_calibration() -> None:
    labels = [i % 20 for i in range(2000)]
    measured, calibration = choose_pictures(labels)
    assert (len(measured), len(calibration)) == (MEASURED, CALIBRATION)
    assert not set(measured) & set(calibration)
    assert len({labels[i] for i in measured}) <= 6  # whole classes
    few, few_calibration = choose_pictures([0] * 50)
    assert sorted(few) == sorted(few_calibration) == list(range(50))


@pytest.mark.parametrize("view", ["crop", pytest.param("whole", marks=pytest.mark.slow)])
def test_an_index_in_int8(
    view: str, run: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.idx"
    words = ["index", str(run), str(pictures), "--out", str(out), "--view", view, "--cache", "none"]
    assert main([*words, "--precision", "int8"]) == 0
    messages = capsys.readouterr().err
    assert "int8 on 18 pictures: MAP@R" in messages
    assert "% of the ten nearest neighbours stay" in messages
    picture = pictures / "1" / "2.png"
    with index.open(out) as idx:
        assert idx.about.precision == "int8"
        model, with_torch = idx.model(), idx.trained_model("cpu")
        assert isinstance(model, ConvertedModel)
        assert with_torch.precision == "int8"
        assert "i8" in (out / "model" / "engine" / "backbone.xml").read_text()
        stored = idx.vectors([index.file_id(picture)])
        np.testing.assert_allclose(model.embed(picture), stored, atol=1e-5)  # queries compute as the index did
        np.testing.assert_allclose(with_torch.embed(picture), stored, atol=1e-5)
        exact = load(run, "cpu", "torch", view=view).embed(picture)  # type: ignore[arg-type]
        assert 1e-6 < np.abs(exact - stored).max() < 0.1
    Image.new("RGB", (50, 40), "red").save(pictures / "1" / "new.png")
    assert main(words) == 0  # an update keeps int8
    (pictures / "1" / "new.png").unlink()
    with index.open(out) as idx:
        assert isinstance(idx.model(), ConvertedModel)
        assert idx.count() == 19
    assert main([*words, "--precision", "fp32"]) == 2
    assert "holds vectors of int8: make a new index for fp32" in capsys.readouterr().err


def test_evaluate_and_embed_in_int8(
    run: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", str(run), str(pictures), "--json", "--cache", "none"]
    assert main([*words, "--precision", "int8"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["P@1"] > 0
    assert "int8 on 18 pictures: MAP@R" in printed.err
    out = tmp_path / "vectors.npy"
    assert main(["embed", str(run), str(pictures), "--out", str(out), "--precision", "int8", "--cache", "none"]) == 0
    exact = load(run, "cpu", "torch").embed(sorted(pictures.rglob("*.png")))
    assert 1e-6 < np.abs(np.load(out) - exact).max() < 0.1


def test_int8_needs_openvino(run: Path, pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["index", str(run), str(pictures), "--out", str(tmp_path / "no.idx"), "--precision", "int8"]
    assert main([*words, "--engine", "torch"]) == 2
    assert "int8 needs the engine openvino on a CPU, got torch" in capsys.readouterr().err
    assert not (tmp_path / "no.idx").exists()
