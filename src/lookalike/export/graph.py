"""A model as one graph: inputs (B, 3, size, size), prepared as its ``InputSpec`` says, -> vectors (B, D), for any B.

With ``details`` the graph also gives the weights of the pooling (B, rows, columns), which sum to 1, and the attributes
(B, m) if the pooling has any. ``torch.export`` traces the graph; both file formats are made of it.
"""

import warnings
from collections.abc import Callable, Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from lookalike.inference.preprocess import to_inputs
from lookalike.models import Embedder
from lookalike.models.weight_files import first_line

INPUT, BATCH = "images", "batch"
MAX_BATCH = 2**16
TOLERANCE = 1e-4  # largest difference between the outputs of a file and of the model


class Graph(nn.Module):
    """The forward pass of an Embedder with plain tensors as results.

    Args:
        embedder: The model; the graph holds a copy on the CPU, in eval mode and without gradients.
        details: Also give the weights and attributes of the pooling.

    Attributes:
        outputs: Names of the results.

    Raises:
        ValueError: If ``details`` are wanted of a pooling without weights.
    """

    def __init__(self, embedder: Embedder, details: bool = False) -> None:
        super().__init__()
        pooling = embedder.head.pooling
        if details and not pooling.has_weights:
            raise ValueError(f"{pooling_name(embedder)} does not weigh places: export it without details")
        self.embedder = deepcopy(embedder).cpu().eval().requires_grad_(False)
        self.outputs = ["vectors"]
        if details:
            self.outputs.append("weights")
        if details and pooling.has_attributes:
            self.outputs.append("attributes")

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """The results named in ``outputs`` for images (B, 3, size, size)."""
        if len(self.outputs) == 1:
            return (self.embedder(images),)
        maps = self.embedder.backbone.maps(images)
        pooled = self.embedder.head(maps.flatten(1, 2), details=True)
        weights = pooled.weights.unflatten(1, (maps.shape[1], maps.shape[2]))
        results = (pooled.vector, weights, pooled.attributes)
        return results[: len(self.outputs)]


def pooling_name(embedder: Embedder) -> str:
    """The name of the model's pooling."""
    return str(embedder.settings()["pooling"]["name"])


def example(embedder: Embedder, pictures: int = 2) -> Tensor:
    """Inputs of random pictures (pictures, 3, size, size), the same ones every time."""
    size = embedder.input_spec.size
    pixels = np.random.default_rng(0).integers(0, 256, (pictures, size, size, 3), np.uint8)
    return to_inputs(pixels, embedder.input_spec).contiguous()


def any_batch() -> dict[str, Any]:
    """The ``dynamic_shapes`` of torch.export for any batch size."""
    return {INPUT: {0: Dim(BATCH, min=1, max=MAX_BATCH)}}


def trace(graph: Graph) -> ExportedProgram:
    """Trace a graph for any batch size.

    Args:
        graph: The graph.

    Returns:
        The program of ``torch.export``.

    Raises:
        ValueError: If the backbone or the pooling cannot be traced.
    """
    pictures = (example(graph.embedder),)
    failure: Exception | None = None
    for strict in (False, True):  # strict is slower, but can also trace len() of a tensor
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.export.export(graph, pictures, dynamic_shapes=any_batch(), strict=strict)
        except Exception as error:  # tracing raises many kinds of errors
            failure = failure or error
    assert failure is not None
    raise ValueError(
        f"{graph.embedder.backbone.name} with {pooling_name(graph.embedder)} cannot be traced by torch.export: "
        f"{first_line(failure)}"
    )


def check_results(path: Path, graph: Graph, run: Callable[[Tensor], Iterable[Any]]) -> float:
    """Compare the results of an exported file with those of the model.

    Args:
        path: The file, for the error.
        graph: The model's graph.
        run: Runs the file for inputs (B, 3, size, size).

    Returns:
        The largest difference.

    Raises:
        ValueError: If it is above ``TOLERANCE`` or not finite.
    """
    pictures = example(graph.embedder, 3)
    largest = 0.0
    with torch.inference_mode():
        for expected, result in zip(graph(pictures), run(pictures), strict=True):
            difference = (expected - torch.as_tensor(result)).abs().max().item()
            if not difference <= TOLERANCE:  # also for NaN
                raise ValueError(
                    f"{path} was not written: its results differ from the model's by {difference:.1e}, "
                    f"more than {TOLERANCE:g}"
                )
            largest = max(largest, difference)
    return largest
