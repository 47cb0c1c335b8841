"""Optuna samplers and distributions for a search space."""

from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from lookalike.tuning.space import Axis, Space
from lookalike.tuning.task import Task


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The search space as Optuna distributions."""
    return {name: _distribution(axis) for name, axis in space.items()}


def make_sampler(task: Task, number: int) -> BaseSampler:
    """Create the sampler for one trial.

    It is seeded by the trial's number: no two workers propose the same, and a search can be repeated.
    """
    if task.points is not None:
        return ListSampler(task)
    seed = int(np.random.SeedSequence((task.seed, number)).generate_state(1)[0])
    if task.sampler == "random":
        return RandomSampler(seed=seed)
    if task.sampler == "gp":
        return GPSampler(seed=seed)
    return TPESampler(seed=seed, constant_liar=True)


class ListSampler(BaseSampler):
    """Gives trial n the n-th point of a list. Optuna's GridSampler may give two workers the same point.

    Args:
        task: with ``points``.
    """

    def __init__(self, task: Task) -> None:
        self.task = task
        self.fallback = RandomSampler(seed=task.seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        """All settings are sampled together."""
        return distributions(self.task.space)

    def sample_relative(
        self,
        study: Study,  # noqa: ARG002
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        """The point of this trial."""
        points = self.task.points or []
        if trial.number >= len(points):
            return {}
        return points[trial.number]

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """A random value beyond the end of the list."""
        return self.fallback.sample_independent(study, trial, param_name, param_distribution)


def _distribution(axis: Axis) -> BaseDistribution:
    if axis.kind == "list":
        return CategoricalDistribution(axis.values)
    low, high = axis.values
    if axis.kind == "int":
        return IntDistribution(int(str(low)), int(str(high)))
    return FloatDistribution(float(str(low)), float(str(high)), log=axis.kind == "log")
