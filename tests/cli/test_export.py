"""lookalike export as people type it."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import lookalike
from lookalike import data
from lookalike.cli import main
from lookalike.data.reading import read_picture
from lookalike.export import quantise_weights
from lookalike.inference.preprocess import Preprocess
from lookalike.models import Embedder, save_model
from lookalike.training.evaluate import measure


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("runs") / "mine"
    save_model(Embedder("resnet8-half", dim=8, pooling="gem"), folder)
    return folder


def test_onnx(run: Path, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    out = tmp_path / "new" / "mine.onnx"
    assert main(["export", str(run), "--out", str(out), "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "checked: onnxruntime and the model differ by at most" in said
    assert f"InferenceSession('{out}')" in said
    model = lookalike.load(run, "cpu")
    picture = next(class_folders.rglob("*.png"))
    numbers = Preprocess(model.spec)(read_picture(picture))[None]
    vectors = onnxruntime.InferenceSession(str(out)).run(["vectors"], {"images": numbers.numpy()})[0]
    np.testing.assert_allclose(vectors, model.embed(picture), atol=1e-4)
    before = out.read_bytes()
    assert main(["export", str(run), "--out", str(out)]) == 2
    assert "exists: choose another --out or add --overwrite" in capsys.readouterr().err
    assert out.read_bytes() == before
    assert [file.name for file in out.parent.iterdir()] == ["mine.onnx"]


def test_int8_is_measured(run: Path, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.pt2"
    words = ["export", str(run), "--out", str(out), "--int8", "--data", str(class_folders), "--workers", "0"]
    assert main([*words, "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    pictures = data.load(class_folders)
    model = lookalike.load(run, "cpu")
    before = 100 * measure(model.embed_table(pictures, workers=0), pictures)["MAP@R"]
    quantise_weights(model.embedder)
    after = 100 * measure(model.embed_table(pictures, workers=0), pictures)["MAP@R"]
    assert f"on {pictures.name}, 64 pictures, in percent:\n  MAP@R  {before:6.2f} -> {after:6.2f} with int8" in said
    assert "torch.export.load" in said
    numbers = torch.randn(3, 3, 64, 64)
    (vectors,) = torch.export.load(out).module()(numbers)
    with torch.inference_mode():
        torch.testing.assert_close(vectors, model.embedder(numbers), atol=1e-4, rtol=0)


def test_folder(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "shared"
    assert main(["export", str(run), "--out", str(out), "--device", "cpu"]) == 0
    assert f"lookalike.load('{out}').embed(pictures)" in capsys.readouterr().out
    assert lookalike.load(out, "cpu").dim == 8
    assert main(["export", str(out), "--out", str(out), "--overwrite", "--format", "folder", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "folder"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "missing --out (file to write, .onnx or .pt2, or a folder)"),
        (["--out", "x.onnx", "--int8"], "--int8 needs --data DATA, to measure the loss of accuracy"),
        (["--out", "x.onnx", "--data", "glyphs"], "--data is only used with --int8"),
        (["--out", "x", "--int8", "--data", "glyphs"], "--int8 is for the formats onnx and torch"),
        (["--out", "x", "--details"], "--details is for the formats onnx and torch"),
        (["--out", "x.bin"], "--out must end in .onnx or .pt2, or add --format folder, got x.bin"),
        (["--out", "x.pt2", "--format", "onnx"], "--out must end in .onnx for --format onnx, got x.pt2"),
        (["--out", "x.onnx", "--format", "tflite"], "format must be one of onnx, torch, folder"),
        (["--out", "there", "--overwrite", "--format", "torch"], "--out must end in .pt2"),
        (["--out", "there"], "there exists: choose another --out or add --overwrite"),
        (["--out", "there.onnx", "--overwrite"], "--out must be a file, got the folder there.onnx"),
        (["--out", "file", "--overwrite"], "--out must be a folder for --format folder, got the file file"),
    ],
)
def test_refusals(
    words: list[str],
    message: str,
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("there", "there.onnx"):
        (tmp_path / folder).mkdir()
    (tmp_path / "file").write_text("mine")
    assert main(["export", str(run), *words]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "there", "there.onnx"]


def test_models_that_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript")
    save_model(Embedder("resnet8-half", dim=8, pooling="gemax"), tmp_path / "gemax")
    assert main(["export", str(tmp_path / "gemax"), "--out", str(tmp_path / "x.onnx")]) == 2
    assert "the pooling gemax cannot be exported to ONNX: it solves" in capsys.readouterr().err
    save_model(Embedder("resnet8-half", dim=8, pooling="bilinear"), tmp_path / "bilinear")
    assert main(["export", str(tmp_path / "bilinear"), "--out", str(tmp_path / "x.pt2"), "--details"]) == 2
    assert "--details: the pooling of this model has no weights" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "nothing"), "--out", str(tmp_path / "x.pt2")]) == 2
    assert "holds no model: there is no model.json" in capsys.readouterr().err
    assert not list(tmp_path.glob("x.*"))
