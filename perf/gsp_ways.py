"""Generalized sum pooling measured: this layer beside the paper's two ways to it, and beside two cheap poolings.

To add a way, add it to ``CONTESTANTS``.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from training_steps import Contestant, Pool, Procedure, measure

from lookalike import GeneralizedSumPool
from lookalike.pooling.reference import paper_closed_form, paper_iteration, pool_by

KEEP, SHARPNESS, ITERATIONS = 0.3, 5.0, 100

Build = Callable[[nn.Parameter], Pool]  # prototypes (m, d), shared by all contestants -> Pool


class Size(NamedTuple):
    bags: int
    features: int
    prototypes: int
    dim: int

    def __str__(self) -> str:
        return "B={}, n={}, m={}, d={}".format(*self)

    @property
    def unit_bytes(self) -> int:
        """The larger of cost matrix and features, in fp32."""
        return 4 * self.bags * self.features * max(self.prototypes, self.dim)


SIZES = [Size(32, 49, 64, 128), Size(112, 49, 128, 512), Size(32, 196, 128, 128), Size(8, 1024, 256, 256)]
ROUNDS = [1, 2, 5, 10, 25, 50, 100, 200]
QUICK_SIZES, QUICK_ROUNDS = [Size(2, 9, 4, 8), Size(3, 8, 6, 5)], [1, 5]

THIS, CLOSED_FORM, AUTOGRAD = "this layer", "paper, closed-form gradient", "paper, autograd"
COMPILED = "this layer, torch.compile"
FLOOR = "similarity-softmax"


def layer(prototypes: nn.Parameter) -> GeneralizedSumPool:
    pool = GeneralizedSumPool(prototypes.shape[1], prototypes.shape[0], KEEP, SHARPNESS)
    pool.prototypes = prototypes
    return pool


def sharp_layer(prototypes: nn.Parameter) -> Pool:
    """Above sharpness 5 the distances are taken by an fp64 product."""
    pool = GeneralizedSumPool(prototypes.shape[1], prototypes.shape[0], KEEP, sharpness=50.0)
    pool.prototypes = prototypes
    return pool


def layer_with_attributes(prototypes: nn.Parameter) -> Pool:
    pool = layer(prototypes)
    return lambda features: pool(features, details=True).vector


def compiled_layer(prototypes: nn.Parameter) -> Pool:
    compiled: Pool = torch.compile(layer(prototypes), fullgraph=True, dynamic=False)
    return compiled


def closed_form(prototypes: nn.Parameter, iterations: int = ITERATIONS) -> Pool:
    transport = partial(paper_closed_form, iterations=iterations)
    return lambda features: pool_by(transport, features, prototypes, KEEP, SHARPNESS)


def autograd(prototypes: nn.Parameter, iterations: int = ITERATIONS) -> Pool:
    transport = partial(paper_iteration, iterations=iterations)
    return lambda features: pool_by(transport, features, prototypes, KEEP, SHARPNESS)


def average(_: nn.Parameter) -> Pool:
    return lambda features: features.mean(1)


def similarity_softmax(prototypes: nn.Parameter) -> Pool:
    """The floor: the least that compares every feature with every prototype. A histogram (B, m), nothing else."""
    return lambda features: (features @ prototypes.T).softmax(-1).mean(1)


CONTESTANTS: dict[str, Build] = {
    THIS: layer,
    "this layer, sharpness 50": sharp_layer,
    "this layer, with attributes": layer_with_attributes,
    CLOSED_FORM: closed_form,
    AUTOGRAD: autograd,
    "average pooling": average,
    FLOOR: similarity_softmax,
}


class Inputs(NamedTuple):
    features: Tensor
    prototypes: nn.Parameter

    def for_all(self, pools: Mapping[str, Pool]) -> dict[str, Contestant]:
        return {name: Contestant(pool, self.features, [self.prototypes]) for name, pool in pools.items()}


def draw_inputs(size: Size, device: torch.device) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(size.bags, size.features, size.dim, generator=generator)
    prototypes = normalize(torch.randn(size.prototypes, size.dim, generator=generator))
    return Inputs(features.to(device).requires_grad_(), nn.Parameter(prototypes.to(device)))


def compare(size: Size, contestants: Mapping[str, Build], procedure: Procedure, first: bool) -> dict[str, Any]:
    """All contestants at one size, as one entry of the JSON."""
    inputs = draw_inputs(size, procedure.device)
    pools = {name: build(inputs.prototypes) for name, build in contestants.items()}
    difference = disagreement(pools[THIS], pools[CLOSED_FORM], inputs.features)
    measured = measure(inputs.for_all(pools), procedure)
    milliseconds = {name: one.milliseconds for name, one in measured.items()}
    return {
        "size": size._asdict(),
        "milliseconds": milliseconds,
        "quartiles": {name: one.quartiles for name, one in measured.items()},
        "memory_bytes": {name: one.memory for name, one in measured.items()},
        "memory_multiple": {name: one.memory / size.unit_bytes for name, one in measured.items()},
        "disagreement": difference,
        "ratios": ratios_and_aims(milliseconds, measured[THIS].memory / size.unit_bytes, first),
    }


def ratios_and_aims(
    milliseconds: Mapping[str, float], memory_multiple: float, first: bool
) -> dict[str, dict[str, Any]]:
    this = milliseconds[THIS]
    least = 4.0 if first else 2.0
    rows = [
        ("this layer / similarity-softmax", this / milliseconds[FLOOR], "<=", 1.5),
        ("closed form / this layer", milliseconds[CLOSED_FORM] / this, ">=", least),
        ("autograd / this layer", milliseconds[AUTOGRAD] / this, ">=", 10.0),
        ("memory / max(cost, features)", memory_multiple, "<", 2.0),
    ]
    holds = {"<=": float.__le__, ">=": float.__ge__, "<": float.__lt__}
    return {
        name: {"measured": value, "aim": f"{sign} {aim:g}", "met": holds[sign](value, aim)}
        for name, value, sign, aim in rows
    }


def disagreement(pool: Pool, other: Pool, features: Tensor) -> float:
    """Two contestants that claim the same result are compared in time only if they have it."""
    with torch.no_grad():
        ours, theirs = pool(features), other(features)
    difference = float((ours - theirs).abs().max() / theirs.abs().max())
    if not difference < 1e-3:
        raise RuntimeError(f"this layer and the paper's iteration differ by {difference:.1e}: nothing to compare")
    return difference


def sweep_rounds(size: Size, rounds: list[int], procedure: Procedure) -> dict[str, Any]:
    """Time and memory of both iterations against their number of rounds k; this layer has none."""
    inputs = draw_inputs(size, procedure.device)
    iterations: dict[str, Callable[..., Pool]] = {CLOSED_FORM: closed_form, AUTOGRAD: autograd}
    pools: dict[str, Pool] = {THIS: layer(inputs.prototypes)}
    for name, build in iterations.items():
        pools |= {f"{name}, k={k}": build(inputs.prototypes, k) for k in rounds}
    measured = measure(inputs.for_all(pools), procedure)

    def series(values: Mapping[str, float]) -> dict[str, Any]:
        lines = {name: [values[f"{name}, k={k}"] for k in rounds] for name in iterations}
        return {THIS: values[THIS], **lines}

    return {
        "size": size._asdict(),
        "rounds": rounds,
        "milliseconds": series({name: one.milliseconds for name, one in measured.items()}),
        "megabytes": series({name: one.memory / 1e6 for name, one in measured.items()}),
    }
