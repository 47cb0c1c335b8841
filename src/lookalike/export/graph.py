"""A model as one graph: numbers (B, 3, size, size), prepared as its ``InputSpec`` says, -> vectors (B, D), for any B.

With ``details`` also where the pooling looked, (B, rows, columns), each adding up to 1, and its attributes (B, m) where
it has some. The graph is traced by ``torch.export``; both file formats are made of it.
"""

import warnings
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from lookalike.inference.preprocess import to_inputs
from lookalike.models import Embedder

INPUT, BATCH = "images", "batch"
MOST = 2**16  # pictures in a batch
TOLERANCE = 1e-4  # between the vectors of a file and those of the model


class Graph(nn.Module):
    """What is exported of an Embedder: its forward pass with plain tensors as results, see ``outputs``.

    It holds a copy on the CPU, in eval mode and without gradients.
    """

    def __init__(self, embedder: Embedder, details: bool = False) -> None:
        super().__init__()
        pooling = embedder.head.pooling
        if details and not pooling.has_weights:
            raise ValueError(f"{pooling_name(embedder)} does not weigh places: export it without details")
        self.embedder = deepcopy(embedder).cpu().eval().requires_grad_(False)
        self.outputs = ["vectors"]
        if details:
            self.outputs += ["weights", *(["attributes"] if pooling.has_attributes else [])]

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        if len(self.outputs) == 1:
            return (self.embedder(images),)
        maps = self.embedder.backbone.maps(images)
        seen = self.embedder.head(maps.flatten(1, 2), details=True)
        results = (seen.vector, seen.weights.unflatten(1, (maps.shape[1], maps.shape[2])), seen.attributes)
        return results[: len(self.outputs)]


def pooling_name(embedder: Embedder) -> str:
    return str(embedder.settings()["pooling"]["name"])


def example(embedder: Embedder, pictures: int = 2) -> Tensor:
    """Inputs of random pictures (pictures, 3, size, size), the same ones every time."""
    size = embedder.input_spec.size
    pixels = np.random.default_rng(0).integers(0, 256, (pictures, size, size, 3), np.uint8)
    return to_inputs(pixels, embedder.input_spec).contiguous()


def any_batch() -> dict[str, Any]:
    """The first dimension is free, as torch.export wants to be told."""
    return {INPUT: {0: Dim(BATCH, min=1, max=MOST)}}


def trace(graph: Graph) -> ExportedProgram:
    """The graph for any number of pictures from 1 on."""
    pictures = (example(graph.embedder),)
    failure: Exception | None = None
    for strict in (False, True):  # strict follows also code that asks a tensor for its len(), and takes longer
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.export.export(graph, pictures, dynamic_shapes=any_batch(), strict=strict)
        except Exception as error:  # whatever a tracer meets
            failure = failure or error
    raise ValueError(
        f"{graph.embedder.backbone.name} with {pooling_name(graph.embedder)} cannot be traced by torch.export: "
        f"{first_line(failure)}"
    )


def first_line(error: BaseException | None) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def largest_difference(expected: tuple[Tensor, ...], got: list[Any]) -> float:
    """Between two lists of results; infinite where one of them is not finite."""
    differences = [(ours - torch.as_tensor(theirs)).abs().max() for ours, theirs in zip(expected, got, strict=True)]
    worst = torch.stack(differences).max()
    return float(worst) if bool(worst.isfinite()) else float("inf")
