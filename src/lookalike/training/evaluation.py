"""Vectors -> metrics, and the share of the pictures that each process embeds."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lookalike.data.pictures import Pictures
from lookalike.retrieval.metrics import retrieval_metrics


def share(count: int, rank: int, world_size: int) -> NDArray[np.int64]:
    """The pictures that one process embeds; one without a share embeds the first, and ``join_shares`` drops it."""
    return np.arange(rank if rank < count else 0, count, world_size)


def join_shares(gathered: Tensor, count: int) -> Tensor:
    """(world, most, D), each the vectors of one ``share`` padded to equal length -> (count, D) in order."""
    return gathered.transpose(0, 1).reshape(-1, gathered.shape[-1])[:count]


def has_roles(pictures: Pictures) -> bool:
    return pictures.roles is not None and bool((pictures.roles != "").any())


def measure(
    vectors: Tensor | np.ndarray[Any, Any],
    pictures: Pictures,
    *,
    distance: str = "cosine",
    ks: tuple[int, ...] = (1, 2, 4, 8),
) -> dict[str, float]:
    """``retrieval_metrics``: queries against the gallery where the pictures have roles, else leave-one-out."""
    if not has_roles(pictures):
        return retrieval_metrics(vectors, pictures.labels, distance=distance, ks=ks)
    assert pictures.roles is not None
    queries = np.flatnonzero(np.isin(pictures.roles, ("query", "both")))
    gallery = np.flatnonzero(np.isin(pictures.roles, ("gallery", "both")))
    for name, part in (("query", queries), ("gallery", gallery)):
        if len(part) == 0:
            raise ValueError(f"{pictures.name} has roles but no picture with the role {name!r}")
    return retrieval_metrics(
        vectors[queries],
        pictures.labels[queries],
        vectors[gallery],
        pictures.labels[gallery],
        query_ids=queries,
        reference_ids=gallery,
        distance=distance,
        ks=ks,
    )


def as_lines(figures: dict[str, float]) -> Iterator[str]:
    """For people: shares in percent."""
    for name, value in figures.items():
        yield f"{name:<8} {value:8,d}" if isinstance(value, int) else f"{name:<8} {100 * value:8.2f}"
