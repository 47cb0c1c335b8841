"""A small model, and a small collection."""

from pathlib import Path

import pytest
import torch
from collection_helpers import draw_collection

from lookalike.inference.model import TrainedModel, load
from lookalike.models import Embedder, create_backbone, save_model


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = create_backbone("resnet8-half", weights="none")
        folder = tmp_path_factory.mktemp("runs") / "mine"
        save_model(Embedder(backbone, 8, "average", {}, "l2", backbone.spec.resized(32)), folder)
    return folder


@pytest.fixture(scope="session")
def model(run: Path) -> TrainedModel:
    return load(run, "cpu", "torch")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return draw_collection(tmp_path / "pictures")
