"""A folder with what large collections have: copies, files of equal size, damaged ones."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from lookalike.inference.model import TrainedModel

BAD = "b/torn.png"
COPIES = {"c/copy.png": "a/1.png", "c/again.png": "a/1.png", "c/bitmap.bmp": "b/0.bmp"}


def draw_collection(root: Path, per_kind: int = 8, seed: int = 0) -> Path:
    """PNGs and JPEGs of many sizes, bitmaps that all have the same, copies, and a damaged file."""
    rng = np.random.default_rng(seed)
    for name in "abc":
        (root / name).mkdir(parents=True)
    for number in range(per_kind):
        sides = rng.integers(20, 60, 2)
        pixels = rng.integers(0, 256, (*sides, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "a" / f"{number}.png")
        Image.fromarray(pixels).resize((400, 300)).save(root / "a" / f"large{number}.jpg")
        same = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
        Image.fromarray(same).save(root / "b" / f"{number}.bmp")
    for copy, original in COPIES.items():
        shutil.copyfile(root / original, root / copy)
    (root / BAD).write_bytes((root / "a/2.png").read_bytes()[:100])
    (root / "c" / "notes.txt").write_text("not a picture")
    return root


def names_of(root: Path) -> list[str]:
    """All pictures that can be read."""
    files = [file.relative_to(root).as_posix() for file in sorted(root.rglob("*")) if file.is_file()]
    return [name for name in files if not name.endswith(".txt") and name != BAD]


def plain_vectors(model: TrainedModel, root: Path) -> dict[str, bytes]:
    """By name, what the model gives for every file alone."""
    return {name: model.embed(root / name)[0].tobytes() for name in names_of(root)}


def stored_rows(folder: Path) -> dict[str, dict[str, Any]]:
    """By path, the rows of all parts; none may occur twice."""
    import pyarrow.parquet as pq

    rows: dict[str, dict[str, Any]] = {}
    for part in sorted(folder.glob("part-*.parquet")):
        for row in pq.read_table(part).to_pylist():
            assert row["path"] not in rows, "a picture was written twice"
            rows[row["path"]] = row
    return rows


def stored_vectors(folder: Path) -> dict[str, bytes]:
    return {path: np.array(row["vector"], np.float32).tobytes() for path, row in stored_rows(folder).items()}
