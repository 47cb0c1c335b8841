"""Evaluate the model during a run: embed pictures, by all processes together, and compute retrieval metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from lookalike.data.pictures import Pictures
from lookalike.inference.model import embed_batches
from lookalike.models.backbone import in_eval_mode
from lookalike.retrieval.calibration import Calibration, find_neighbourhoods, fit
from lookalike.retrieval.metrics import retrieval_metrics
from lookalike.training.features import join_shares

if TYPE_CHECKING:
    from lookalike.training.setup import Setup


class Evaluator:
    """Embeds and evaluates pictures with the model of a run."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.fabric = setup, setup.fabric
        self.latest: Tensor | None = None  # vectors of the held-out pictures

    def metrics(self, with_baseline: bool = False) -> tuple[dict[str, float], dict[str, float]]:
        """Evaluate the held-out pictures.

        Returns:
            Metrics of the model, empty without held-out pictures; metrics of the baseline, in the first process only.
        """
        validation = self.setup.validation
        if validation is None:
            return {}, {}
        vectors, averages = self._embed(validation, "evaluating", with_baseline)
        self.latest = vectors
        metrics: dict[str, float] = {}
        baseline: dict[str, float] = {}
        if self.setup.is_first:
            metrics = measure(vectors, validation, distance=self.setup.embedder.head.distance)
            if averages is not None:
                baseline = measure(averages, validation)
        return self.fabric.broadcast(metrics), baseline

    def calibration(self) -> Calibration | None:
        """Fit P(same | distance) on the vectors of the last evaluation; None if there are too few."""
        validation = self.setup.validation
        if validation is None or self.latest is None:
            return None
        queries, gallery = roles(validation)
        neighbourhoods = find_neighbourhoods(
            self.latest.numpy(),
            validation.labels,
            distance=self.setup.embedder.head.distance,
            queries=queries,
            gallery=gallery,
        )
        source, unseen = held_out_source(self.setup.train, validation)
        try:
            return fit(neighbourhoods, source, unseen=unseen)
        except ValueError:
            return None

    def vectors(self, positions: NDArray[np.int64]) -> Tensor:
        """Embed training pictures: positions (n,) -> vectors (n, D) on the CPU. Repeated ones are embedded once."""
        unique, inverse = np.unique(positions, return_inverse=True)
        vectors, _ = self._embed(self.setup.train.take(unique), "embedding", False)
        return vectors[torch.from_numpy(inverse)]

    def _embed(self, pictures: Pictures, what: str, with_averages: bool) -> tuple[Tensor, Tensor | None]:
        """Vectors of all pictures, and their averaged local features or None."""
        embedder, fabric = self.setup.embedder, self.fabric
        longest_share = -(-len(pictures) // fabric.world_size)

        def forward(inputs: Tensor) -> tuple[Tensor, ...]:
            with fabric.autocast():
                tokens = self.setup.local_features(inputs)
                vectors = embedder.head(tokens)
            if with_averages:
                return vectors, tokens.float().mean(1)
            return (vectors,)

        with in_eval_mode(embedder), self.setup.display.bar(longest_share, what) as tick:
            batches = self.setup.feed.evaluation(pictures, fabric.global_rank, fabric.world_size)
            results = list(embed_batches(batches, forward, device=fabric.device, tick=tick))
        if fabric.world_size > 1:
            for index, own_share in enumerate(results):
                padded = pad(own_share, (0, 0, 0, longest_share - len(own_share))).to(fabric.device)
                gathered = cast(Tensor, fabric.all_gather(padded))
                results[index] = join_shares(gathered, len(pictures)).cpu()
        if with_averages:
            return results[0], results[1]
        return results[0], None


def held_out_source(train: Pictures, validation: Pictures) -> tuple[str, bool]:
    """Return what a calibration on held-out pictures says of them, and whether their classes were not trained on."""
    unseen = not set(validation.classes) & set(train.classes)
    return "classes held out from training" if unseen else "pictures held out from training", unseen


def measure(
    vectors: Tensor | np.ndarray[Any, Any],
    pictures: Pictures,
    *,
    distance: str = "cosine",
    ks: tuple[int, ...] = (1, 2, 4, 8),
) -> dict[str, float]:
    """Compute retrieval metrics: queries against the gallery if the pictures have roles, else leave-one-out.

    Args:
        vectors: Vectors of the pictures (n, D).
        pictures: Have labels and maybe roles.
        distance: Distance to compare by.
        ks: K of R@K.

    Returns:
        Metrics by name, see ``lookalike.retrieval_metrics``.

    Raises:
        ValueError: If there are roles, but no query or no gallery picture.
    """
    queries, gallery = roles(pictures)
    if queries is None or gallery is None:
        return retrieval_metrics(vectors, pictures.labels, distance=distance, ks=ks)
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


def roles(pictures: Pictures) -> tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]:
    """Return the positions of queries and gallery; None for both if the pictures have no roles.

    Raises:
        ValueError: If there are roles, but no query or no gallery picture.
    """
    if pictures.roles is None or not np.any(pictures.roles != ""):
        return None, None
    queries = np.flatnonzero(np.isin(pictures.roles, ("query", "both")))
    gallery = np.flatnonzero(np.isin(pictures.roles, ("gallery", "both")))
    for role, positions in (("query", queries), ("gallery", gallery)):
        if len(positions) == 0:
            raise ValueError(f"{pictures.name} has roles but no picture with the role {role!r}")
    return queries, gallery


def as_lines(metrics: dict[str, float]) -> Iterator[str]:
    """Format metrics for people, one line each; shares are in percent."""
    for name, value in metrics.items():
        if isinstance(value, int):
            yield f"{name:<8} {value:8,d}"
        else:
            yield f"{name:<8} {100 * value:8.2f}"
