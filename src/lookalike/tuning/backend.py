"""The Optuna side of a search: where a study is stored, its distributions, and its samplers."""

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
    """Open a database by its SQLAlchemy URL, or else the journal, which several machines may share through NFS.

    Raises:
        ValueError: the database cannot be opened.
    """
    if url is None:
        return _open_journal(journal)
    try:
        return RDBStorage(url)
    except ImportError as error:
        raise ValueError(f"--storage {_without_password(url)} needs a driver that is not installed: {error}") from None
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"--storage {_without_password(url)} cannot be opened: {reason}") from None


def repair_journal(journal: Path) -> None:
    """Cut off a last line that a full disk or a power cut left unfinished; Optuna could not read the file."""
    with journal.open("r+b") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)


def url_digest(url: str | None) -> str | None:
    """Identifies a storage without revealing the password in its URL."""
    return None if url is None else digest(url)


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


def _open_journal(journal: Path) -> BaseStorage:
    journal.parent.mkdir(parents=True, exist_ok=True)
    lock_class = JournalFileOpenLock if os.name == "nt" else JournalFileSymlinkLock
    lock = lock_class(str(journal))
    backend = JournalFileBackend(str(journal), lock_obj=lock)
    lock.acquire()
    try:
        repair_journal(journal)
    finally:
        lock.release()
    return JournalStorage(backend)


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if "@" not in rest:
        return url
    return f"{scheme}{separator}...@{rest.rpartition('@')[2]}"


def _distribution(axis: Axis) -> BaseDistribution:
    if axis.kind == "list":
        return CategoricalDistribution(axis.values)
    low, high = axis.values
    if axis.kind == "int":
        return IntDistribution(int(str(low)), int(str(high)))
    return FloatDistribution(float(str(low)), float(str(high)), log=axis.kind == "log")
