"""Our side of Optuna: where it keeps its records, how it proposes, and what a search space is to it."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalFileSymlinkLock
from optuna.study import Study
from optuna.trial import FrozenTrial

from lookalike._util.hashing import digest
from lookalike.tuning.space import Axis, Space
from lookalike.tuning.task import Task


def open_storage(url: str | None, journal: Path) -> BaseStorage:
    """The journal, which several machines may write to by NFS, or a data base by its SQLAlchemy URL."""
    if url is None:
        journal.parent.mkdir(parents=True, exist_ok=True)
        lock = (JournalFileOpenLock if os.name == "nt" else JournalFileSymlinkLock)(str(journal))
        backend = JournalFileBackend(str(journal), lock_obj=lock)
        lock.acquire()
        try:
            mend(journal)
        finally:
            lock.release()
        return JournalStorage(backend)
    try:
        return RDBStorage(url)
    except ImportError as error:
        raise ValueError(f"--storage {_without_password(url)} needs a driver that is not installed: {error}") from None
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"--storage {_without_password(url)} cannot be opened: {reason}") from None


def mend(journal: Path) -> None:
    """Cut off a last line that a full disk or a power cut left unfinished: Optuna would choke on it for ever."""
    with journal.open("r+b") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)


def digest_of(url: str | None) -> str | None:
    """To know the same storage again; the URL itself may hold a password."""
    return None if url is None else digest(url)


def distributions(space: Space) -> dict[str, BaseDistribution]:
    return {name: _distribution(axis) for name, axis in space.items()}


def make_sampler(task: Task, number: int) -> BaseSampler:
    """For the trial of that number, so that no two workers propose alike, and a search can be repeated."""
    if task.points is not None:
        return Listed(task)
    seed = int(np.random.SeedSequence((task.seed, number)).generate_state(1)[0])
    if task.sampler == "random":
        return RandomSampler(seed=seed)
    if task.sampler == "gp":
        return GPSampler(seed=seed)
    return TPESampler(seed=seed, constant_liar=True)


class Listed(BaseSampler):
    """Trial n has the n-th point; Optuna's GridSampler may give two workers the same."""

    def __init__(self, task: Task) -> None:
        self.task, self.otherwise = task, RandomSampler(seed=task.seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:  # noqa: ARG002
        return distributions(self.task.space)

    def sample_relative(
        self,
        study: Study,  # noqa: ARG002
        trial: FrozenTrial,
        search_space: dict[str, BaseDistribution],  # noqa: ARG002
    ) -> dict[str, Any]:
        points = self.task.points or []
        return points[trial.number] if trial.number < len(points) else {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self.otherwise.sample_independent(study, trial, param_name, param_distribution)


def _distribution(axis: Axis) -> BaseDistribution:
    if axis.kind == "list":
        return CategoricalDistribution(axis.values)
    low, high = axis.values
    if axis.kind == "int":
        return IntDistribution(int(str(low)), int(str(high)))
    return FloatDistribution(float(str(low)), float(str(high)), log=axis.kind == "log")


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}...@{rest.rpartition('@')[2]}" if "@" in rest else url
