"""The scripts in examples/ run, on small data."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from fastapi.testclient import TestClient

from lookalike import index

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_folder_to_search_page(
    class_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = load("folder_to_search_page")
    answers = []

    def serve(app: Any, port: int, **_: str) -> None:
        client = TestClient(app, base_url=f"http://127.0.0.1:{port}")
        picture = (class_folders / "class3" / "4.png").read_bytes()
        answers.append(client.post("/search", files={"picture": picture}, data={"k": "1"}).json())

    monkeypatch.setattr(example.uvicorn, "run", serve)
    words = ["--out", str(tmp_path / "search"), "--backbone", "resnet8-half", "--size", "32"]
    example.main([str(class_folders), *words, "--steps", "4", "--batch-size", "8"])
    printed = capsys.readouterr().out
    assert "indexed 64 pictures with 8 labels" in printed
    assert "0.0000  class0" in printed
    assert "class3" in str(answers)
    with index.open(tmp_path / "search" / "index") as idx:
        assert idx.count() == 64


def test_gsp_in_a_timm_loop(class_folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--backbone", "resnet10t", "--size", "32", "--dim", "8", "--epochs", "2"]
    score = load("gsp_in_a_timm_loop").main([str(class_folders), *words])
    assert 0 < score <= 1
    assert "epoch 2: loss" in capsys.readouterr().out


def test_fair_table(class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = "backbone=resnet8-half, size=32, dim=8, start=random, freeze_backbone=false, steps=2, evaluate_every=1"
    small += ", batch_size=8, workers=0, device=cpu, lr=0.001, crop=none"
    words = ["--poolings", "average,gem", "--losses", "c2", "--seeds", "1", "--set", small]
    load("fair_table").main([str(class_folders), *words, "--out", str(tmp_path / "table")])
    printed = capsys.readouterr().out
    assert "c2 + gem" in printed
    assert "best of 2: c2 + " in printed
