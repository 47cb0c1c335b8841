"""The benchmark of views compares all of them on the pictures and on wide ones made of them."""

from pathlib import Path
from types import ModuleType

import pytest
import torch

from lookalike.models import Embedder, create_backbone, save_model


def test_runs(benchmark: ModuleType, class_folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = create_backbone("resnet8-half", weights="none")
        settings = {"num_prototypes": 4, "init": "random"}
        save_model(Embedder(backbone, 8, "gsp", settings, input_spec=backbone.spec.resized(32)), tmp_path / "run")
    benchmark.main([str(tmp_path / "run"), str(class_folders), "--pictures", "3"])
    first, header, *rows = capsys.readouterr().out.splitlines()
    assert first.startswith("24 pictures of 8 classes")
    assert header.split() == ["crop", "squares", "padded", "both"]
    assert [row[:12].strip() for row in rows] == ["as they are", "3:1", "busy 3:1"]
    for row in rows:
        figures = [float(word) for word in row[12:].replace("/", " ").split()]
        assert len(figures) == 8
        assert all(0 <= figure <= 100 for figure in figures)
