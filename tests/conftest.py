"""Small pictures for everybody: eight classes of stripes in noise, as wide as their class says, eight pictures each."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def draw_classes(root: Path, classes: int = 8, per_class: int = 8, side: int = 32, seed: int = 0) -> Path:
    chance = np.random.default_rng(seed)
    columns = np.arange(side)
    for number in range(classes):
        folder = root / f"class{number}"
        folder.mkdir(parents=True)
        for picture in range(per_class):
            stripes = 128 + 60 * np.sin(columns * (0.3 + 0.15 * number) + chance.uniform(0, 6))
            pixels = stripes[None, :, None] + chance.normal(0, 60, (side, side, 3)) + chance.normal(0, 30, 3)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{picture}.png")
    return root


@pytest.fixture(scope="session")
def class_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_classes(tmp_path_factory.mktemp("pictures"))
