"""A model trained for a moment, an index of 64 striped pictures, and servers on it."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient
from server_helpers import READ, WRITE, encoded, noise

from lookalike import index
from lookalike.cli import main
from lookalike.inference.model import TrainedModel, load
from lookalike.server import Keys, Limits, create_app
from lookalike.server.quotas import Buckets

TRAINING = ["--backbone", "resnet8-half", "--start", "random", "--no-freeze-backbone", "--size", "32", "--dim", "8"]
TRAINING += ["--crop", "none", "--steps", "4", "--batch-size", "8", "--per-class", "2", "--evaluate-every", "2"]
TRAINING += ["--lr", "0.001", "--workers", "0", "--device", "cpu"]


@pytest.fixture(scope="session")
def served_run(class_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "striped"
    settings = ["--pooling-settings", "{num_prototypes: 8, memory: 64}"]
    assert main(["train", str(class_folders), "--out", str(out), *TRAINING, *settings]) == 0
    return out


@pytest.fixture(scope="session")
def served_model(served_run: Path) -> TrainedModel:
    return load(served_run, "cpu")


@pytest.fixture(scope="session")
def vectors(served_model: TrainedModel, class_folders: Path) -> tuple[list[Path], np.ndarray]:
    files = sorted(class_folders.rglob("*.png"))
    return files, served_model.embed(files)


@pytest.fixture(scope="session")
def made_index(
    served_run: Path, vectors: tuple[list[Path], np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    path = tmp_path_factory.mktemp("indexes") / "striped.idx"
    files, rows = vectors
    with index.create(path, run=served_run) as idx:
        idx.add([index.file_item(file, label=file.parent.name, metadata={"n": int(file.stem)}) for file in files], rows)
    return path


@pytest.fixture
def index_folder(made_index: Path, tmp_path: Path) -> Path:
    """An index of one's own."""
    shutil.copytree(made_index, tmp_path / "striped.idx")
    return tmp_path / "striped.idx"


@pytest.fixture
def idx(index_folder: Path) -> Iterator[index.Index]:
    with index.open(index_folder) as opened:
        yield opened


@pytest.fixture
def client(idx: index.Index, served_model: TrainedModel) -> Iterator[TestClient]:
    with TestClient(
        create_app(idx, served_model, limits=Limits(pixels=1_000_000)), base_url="http://127.0.0.1"
    ) as made:
        yield made


@pytest.fixture(scope="session")
def shared_index(made_index: Path) -> Iterator[index.Index]:
    """For those who change nothing."""
    with index.open(made_index) as opened:
        yield opened


@pytest.fixture(scope="session")
def shared(shared_index: index.Index, served_model: TrainedModel) -> Iterator[TestClient]:
    app = create_app(shared_index, served_model, limits=Limits(pixels=1_000_000))
    with TestClient(app, base_url="http://127.0.0.1") as made:
        yield made


@pytest.fixture(scope="session")
def locked(shared_index: index.Index, served_model: TrainedModel) -> Iterator[TestClient]:
    """With keys."""
    app = create_app(shared_index, served_model, keys=Keys((READ,), (WRITE,)))
    hours = itertools.count(0, 3600)  # wrong keys are soon forgotten
    app.state.context.access.buckets = Buckets(lambda: float(next(hours)))
    with TestClient(app, base_url="http://127.0.0.1") as made:
        yield made


@pytest.fixture(scope="session")
def upload() -> bytes:
    """A picture that is not in the index."""
    return encoded(noise(40, 30))
