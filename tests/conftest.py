"""Shared fixtures: a small data set of striped pictures; the class sets the width of the stripes."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from PIL import Image

settings.register_profile("busy machines", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machines")

os.environ.setdefault("LOOKALIKE_ENGINE", "torch")  # converting the many tiny models would take long

with suppress(ImportError):
    from absl.logging import get_absl_handler  # imported by OpenVINO

    # absl closes its stream, which would be pytest's, when pymilvus configures logging.
    get_absl_handler().python_handler.stream = sys.__stderr__


def draw_classes(root: Path, classes: int = 8, per_class: int = 8, side: int = 32, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    columns = np.arange(side)
    for number in range(classes):
        folder = root / f"class{number}"
        folder.mkdir(parents=True)
        for picture in range(per_class):
            stripes = 128 + 60 * np.sin(columns * (0.3 + 0.15 * number) + rng.uniform(0, 6))
            pixels = stripes[None, :, None] + rng.normal(0, 60, (side, side, 3)) + rng.normal(0, 30, 3)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{picture}.png")
    return root


@pytest.fixture(scope="session")
def class_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_classes(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A Ray cluster of two nodes; the head computes nothing."""
    pytest.importorskip("ray", reason="RAY IS NOT INSTALLED: the cluster is not tested")
    import ray
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(request.path.parent), *sys.path]))
        patch.setenv("RAY_worker_niceness", "0")  # as fast as everything else on a busy machine
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        for _ in range(2):
            nodes.add_node(num_cpus=1)
        ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
        yield nodes
        ray.shutdown()
        nodes.shutdown()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that uses a browser or several ranks as slow."""
    for item in items:
        if {"browser", "ranks"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
