"""A small model that was never trained, items with vectors, and slow ways to search and to filter."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from lookalike.index import Item
from lookalike.index.filters import Condition, Value
from lookalike.inference.model import TrainedModel
from lookalike.models import Embedder, create_backbone

DIM = 8


def make_model(seed: int = 0, normalise: str = "l2") -> TrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = create_backbone("resnet8-half", weights="none")
        spec = backbone.spec.resized(32)
        return TrainedModel(Embedder(backbone, DIM, "average", {}, normalise, spec))


def draw(count: int, seed: int = 0, dim: int = DIM) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)


def make_items(count: int, start: int = 0) -> list[Item]:
    """Every fourth without metadata, some of mixed types."""
    kinds: list[Any] = [
        lambda i: {"year": 2000 + i % 30, "wild": bool(i % 8), "name": f"n{i % 5}"},
        lambda i: {"year": str(2000 + i % 30), "wild": i % 2},
        lambda _: {},
        lambda i: {"year": None, "name": ["n1"], "wild": i / 7},
    ]
    return [
        Item(f"i{i:05d}", f"/pictures/{i % 7}/{i}.jpg", f"label {i % 7}", kinds[i % 4](i))
        for i in range(start, start + count)
    ]


def plain_search(
    items: Sequence[Item], vectors: np.ndarray[Any, Any], query: np.ndarray[Any, Any], k: int, distance: str
) -> list[tuple[str, float]]:
    """One pair after the other."""
    found = []
    for item, vector in zip(items, vectors, strict=True):
        a, b = [float(x) for x in query], [float(x) for x in vector]
        if distance == "cosine":
            dot = sum(x * y for x, y in zip(a, b, strict=True))
            found.append((1 - dot / (sum(x * x for x in a) * sum(x * x for x in b)) ** 0.5, item.id))
        else:
            found.append((sum((x - y) ** 2 for x, y in zip(a, b, strict=True)) ** 0.5, item.id))
    return [(each, far) for far, each in sorted((round(far, 9), each) for far, each in found)[:k]]


def meets(item: Item, condition: Condition) -> bool:
    """The meaning, word by word as the module has it."""
    key, operator, values = condition
    if key in ("label", "id", "path"):
        there: Any = {"label": item.label, "id": item.id, "path": item.path}[key]
        values = tuple(Value(value.text) for value in values)
    else:
        there = item.metadata.get(key)
    if operator in ("in", "not in"):
        equal = any(_equal(there, value) for value in values)
        return equal if operator == "in" else not equal
    (value,) = values
    if value.number is not None:
        if isinstance(there, bool) or not isinstance(there, (int, float)):
            return False
        other: Any = value.number
    else:
        if not isinstance(there, str):
            return False
        other = value.text
    return bool({"<": there < other, "<=": there <= other, ">": there > other, ">=": there >= other}[operator])


def _equal(there: Any, value: Value) -> bool:
    if isinstance(there, bool):
        return value.truth is there
    if isinstance(there, (int, float)):
        return value.number is not None and value.number == there
    return isinstance(there, str) and value.text == there
