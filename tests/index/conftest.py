"""The model of index_helpers, loaded and as a folder."""

from pathlib import Path

import pytest
from index_helpers import make_model

from lookalike.inference.model import TrainedModel


@pytest.fixture(scope="session")
def model() -> TrainedModel:
    return make_model()


@pytest.fixture(scope="session")
def euclidean_model() -> TrainedModel:
    return make_model(normalise="none")


@pytest.fixture(scope="session")
def run_folder(model: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from lookalike.models import save_model

    folder = tmp_path_factory.mktemp("run")
    save_model(model.embedder, folder)
    return folder
