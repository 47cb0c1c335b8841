"""Generalized sum pooling as the paper computes it, by k rounds of its iteration, for the study of k.

Gradients either go through every round, which are all stored (autograd), or come from Proposition 4.2, which stores
the solution only and presumes that the rounds have converged (closed form). ``lookalike.pooling.gsp`` needs neither.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from lookalike import pooling as poolings
from lookalike.geometry import clip
from lookalike.pooling.base import Pooled
from lookalike.pooling.gsp import GeneralizedSumPool
from lookalike.pooling.reference import paper_closed_form, paper_iteration
from lookalike_studies.framework.context import Tick

NAME = "gsp-iterated"
EXACT, CLOSED_FORM, AUTOGRAD = "this layer", "closed-form gradient", "autograd"
WARM_UP = 2


class IteratedSumPool(GeneralizedSumPool):
    """As ``GeneralizedSumPool``, with ``iterations`` rounds of the paper's, in the linear domain, for the solver."""

    def __init__(
        self,
        dim: int,
        num_prototypes: int = 64,
        keep: float = 0.3,
        sharpness: float = 5.0,
        *,
        iterations: int = 100,
        gradient: Literal["closed-form", "autograd"] = "closed-form",
        init: Literal["random", "k-centre"] = "random",
        memory: int = 1024,
        delay: int = 0,
    ) -> None:
        super().__init__(dim, num_prototypes, keep, sharpness, init=init, memory=memory, delay=delay)
        if gradient not in ("closed-form", "autograd"):
            raise ValueError(f"gradient must be 'closed-form' or 'autograd', got {gradient!r}")
        self.iterations, self.gradient = iterations, gradient

    def forward(self, features: Tensor, mask: Tensor | None = None, *, details: bool = False) -> Any:
        """Tokens (B, N, D) without a mask, or maps."""
        if mask is not None:
            raise ValueError("the paper's iteration is for whole maps: it takes no mask")
        if not self.ready or self._keep == 1:
            if details:
                return super().forward(features, details=True)
            return super().forward(features)
        if features.dim() == 4:
            features = features.flatten(2).mT
        bags = features.float()
        distances = torch.cdist(clip(bags).flatten(0, 1), clip(self.prototypes)).view(*bags.shape[:2], -1)
        solve = paper_iteration
        if self.gradient == "closed-form":
            solve = paper_closed_form
        residual, plan = solve(distances.mT, self._keep, self._sharpness, self.iterations)
        weights = (1 / bags.shape[1] - residual) / self._keep
        vector = (weights.unsqueeze(-1) * bags).sum(1).to(features.dtype)
        if details:
            return Pooled(vector, weights, plan.sum(-1) / self._keep)
        return vector


@contextmanager
def registered() -> Iterator[None]:
    """Let models use this pooling inside the context only: otherwise the exact layer is better."""
    registry: dict[str, Any] = poolings._POOLINGS
    registry[NAME] = IteratedSumPool
    try:
        yield
    finally:
        registry.pop(NAME, None)


class Cost(NamedTuple):
    """Of one training step of the layer."""

    way: str
    iterations: int  # 0 where there are none
    milliseconds: float  # CPU time, forward and backward, the median
    megabytes: float  # kept between forward and backward, beyond the features


def costs(size: tuple[int, int, int, int], rounds: Sequence[int], repeats: int, tick: Tick) -> list[Cost]:
    """Time and memory of each way and number of rounds; size: bags, features of a bag, prototypes, dim.

    The ways take turns, so that other work on the machine affects all of them.
    """
    bags, features_of_bag, prototypes, dim = size
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(bags, features_of_bag, dim, generator=generator).requires_grad_()
    chosen = 0.9 * normalize(torch.randn(prototypes, dim, generator=generator))
    layers: dict[tuple[str, int], GeneralizedSumPool] = {(EXACT, 0): GeneralizedSumPool(dim, prototypes)}
    for k in rounds:
        layers[CLOSED_FORM, k] = IteratedSumPool(dim, prototypes, iterations=k, gradient="closed-form")
    for k in rounds:
        layers[AUTOGRAD, k] = IteratedSumPool(dim, prototypes, iterations=k, gradient="autograd")
    times: dict[tuple[str, int], list[float]] = {}
    for turn in range(repeats + WARM_UP):
        for key, layer in layers.items():
            if turn == 0:
                layer._set_prototypes(chosen)
            started = time.process_time()
            layer(features).square().sum().backward()
            if turn >= WARM_UP:
                times.setdefault(key, []).append(1000 * (time.process_time() - started))
            tick(1)
    measured = []
    for (way, k), layer in layers.items():
        megabytes = (kept_bytes(layer, features) - _bytes(features)) / 1e6
        measured.append(Cost(way, k, median(times[way, k]), megabytes))
    return measured


def kept_bytes(layer: torch.nn.Module, features: Tensor) -> int:
    """What the graph of one forward pass keeps for the backward pass, each piece of memory once."""
    held: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        return tensor

    alive = []
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        alive.append(layer(features))  # kept alive, so that no memory is counted for two
    held.setdefault(features.untyped_storage().data_ptr(), _bytes(features))
    return sum(held.values())


def _bytes(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()
