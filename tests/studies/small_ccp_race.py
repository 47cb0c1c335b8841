"""A race on a handful of points in space, over in a moment, and figures of our choice."""

import numpy as np
import torch
from lookalike_studies.ccp_geometry.claims import Measured
from lookalike_studies.ccp_geometry.race import Budget, Course, DataSplit, DataSplits, solve
from torch import Tensor, nn

from lookalike import objectives
from lookalike.geometry import clip
from lookalike.objectives import PairObjective

CLASSES, EACH = 4, 8


class Flat(nn.Module):
    """A linear map into the unit disc."""

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        return clip(self.map(inputs))


def _part(seed: int) -> DataSplit:
    chance = np.random.default_rng(seed)
    labels = np.repeat(np.arange(CLASSES), EACH)
    means = np.random.default_rng(99).normal(size=(CLASSES, 3))
    points = means[labels] + 0.4 * chance.normal(size=(len(labels), 3))
    return DataSplit(torch.from_numpy(points).float(), labels)


PARTS = DataSplits(_part(0), _part(1), _part(2))
BUDGET = Budget(
    steps=80,
    evaluate_every=2,
    rate=0.02,
    proxies=2,
    pool=4,
    pull=2e-4,
    patience=2,
    batch=8,
    per_class=2,
    weight_decay=0.0,
)


def solve_small(kind: str, seed: int = 0) -> tuple[Course, nn.Module]:
    loss = objectives.create("c2", negative_margin=0.5, normalise=False)
    assert isinstance(loss, PairObjective)
    torch.manual_seed(seed)
    model = Flat()
    return solve(kind, model, loss, 2, PARTS, BUDGET, seed, lambda _: None), model


def run_with(
    figure: float, radius: float = 0.3, own: float = 0.1, distance: float = 1.0, spread: float = 0.5
) -> Measured:
    return Measured(figure, radius, own, distance, spread)
