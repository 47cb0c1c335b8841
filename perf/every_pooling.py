"""Every pooling measured beside average pooling, on bags of one size.

Each is given the bags it was made for: features as after a ReLU where it stands on the backbone, else with both signs.
It is the pooling alone, in training mode: a model adds its projection, which is the same for nearly all of them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from training_steps import Contestant, Procedure, measure

from lookalike import pooling
from lookalike.experiments.choices import Choice

UNIT = "average"


class BagSize(NamedTuple):
    bags: int
    features: int  # of a square map: some poolings look at neighbours
    dim: int

    def __str__(self) -> str:
        return "B={}, n={}, d={}".format(*self)

    @property
    def unit_bytes(self) -> int:
        """The features, in fp32."""
        return 4 * self.bags * self.features * self.dim


SIZES = [BagSize(32, 49, 128), BagSize(32, 196, 512)]
QUICK_SIZES = [BagSize(2, 9, 16), BagSize(3, 4, 8)]


def draw_bags(size: BagSize, device: torch.device, on_backbone: bool) -> Tensor:
    bags = torch.randn(size, generator=torch.Generator().manual_seed(0))
    return (bags.relu() if on_backbone else bags).to(device).requires_grad_()


def contestant(choice: Choice, size: BagSize, device: torch.device) -> Contestant:
    pool = pooling.create(choice.name, size.dim, **choice.settings).to(device)
    bags = draw_bags(size, device, pool.on_backbone or pool.sees_both)
    return Contestant(pool, bags, list(pool.parameters()))


def compare_all(size: BagSize, choices: Sequence[Choice], procedure: Procedure) -> dict[str, Any]:
    """The chosen poolings and the average at one size, as one entry of the JSON."""
    torch.manual_seed(0)
    everyone = {str(choice): contestant(choice, size, procedure.device) for choice in (Choice(UNIT), *choices)}
    measured = measure(everyone, procedure)
    return {
        "size": size._asdict(),
        "parameters": {name: sum(map(Tensor.numel, one.parameters)) for name, one in everyone.items()},
        "milliseconds": {name: one.milliseconds for name, one in measured.items()},
        "quartiles": {name: one.quartiles for name, one in measured.items()},
        "time_ratio": {name: one.milliseconds / measured[UNIT].milliseconds for name, one in measured.items()},
        "memory_bytes": {name: one.memory for name, one in measured.items()},
        "memory_multiple": {name: one.memory / size.unit_bytes for name, one in measured.items()},
    }
