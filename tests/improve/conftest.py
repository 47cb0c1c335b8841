"""Indexes of 64 striped pictures, whose models were never trained."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lookalike import index
from lookalike.inference.model import TrainedModel
from lookalike.models import Embedder, create_backbone

DIM = 16


def make_model(pooling: str) -> TrainedModel:
    settings = {"num_prototypes": 4, "init": "random"} if pooling == "gsp" else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = create_backbone("resnet8-half", weights="none")
        embedder = Embedder(
            backbone, DIM, pooling, settings, input_spec=backbone.spec.resized(32), bias=pooling == "average"
        )
        return TrainedModel(embedder.eval())


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOOKALIKE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def make_index(class_folders: Path, tmp_path: Path) -> Callable[..., Path]:
    def make(pooling: str = "average", labels: bool = False, whole: bool = False) -> Path:
        path = tmp_path / f"{pooling}.idx"
        model = make_model(pooling)
        if whole:
            model.embedder.input_spec = model.embedder.spec_seeing("whole")
            model = TrainedModel(model.embedder)
        with index.create(path, model) as idx:
            index.sync(idx, model, class_folders)
            if not labels:
                items = [item._replace(label="") for item in idx.items()]
                ids = [item.id for item in items]
                stamps = idx.stamps(ids)
                idx.add(items, idx.vectors(ids), [stamps[item_id] for item_id in ids])
        return path

    return make
