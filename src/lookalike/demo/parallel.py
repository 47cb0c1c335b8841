"""Trains every contestant with every learning rate and seed, in several processes.

Every process computes on one thread, so the results do not depend on the number of cores.
"""

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev
from typing import Any, TypeVar

import numpy as np
import torch
from joblib import Parallel, delayed

from lookalike._util.progress import progress
from lookalike._util.signals import RunFailed
from lookalike.data.glyphs import glyphs
from lookalike.data.loading import MOST_WORKERS, default_workers
from lookalike.data.pictures import Pictures
from lookalike.demo.pictures import Shots, draw
from lookalike.demo.training import Budget, Contestant, Outcome, pretrain_letters, train_contestant

Result = TypeVar("Result")
DRAWN_AT_ONCE = 200
TIMEOUT = 1800  # seconds for one task; the longest takes about one minute


@dataclass(frozen=True)
class Selection:
    """A contestant with the learning rate that was best on held-out classes.

    Attributes:
        contestant: The contestant.
        rate: The learning rate.
        outcomes: One for each seed.
    """

    contestant: Contestant
    rate: float
    outcomes: list[Outcome]

    def mean(self, metric: str) -> float:
        """Return the mean of a metric over the seeds."""
        return fmean(outcome.metrics[metric] for outcome in self.outcomes)

    def spread(self, metric: str) -> float | None:
        """Return the standard deviation of a metric over the seeds; None with one seed."""
        if len(self.outcomes) == 1:
            return None
        return stdev(outcome.metrics[metric] for outcome in self.outcomes)

    @property
    def on_letter(self) -> float:
        """Mean share of the weight in the true cell."""
        return fmean(outcome.on_letter for outcome in self.outcomes)


def train_all(
    contestants: Sequence[Contestant], budget: Budget, workers: int | None = None
) -> tuple[dict[str, Shots], list[Outcome]]:
    """Draw the pictures and train everything, in one process per usable core unless ``workers`` is set.

    Returns:
        The pictures ("letters", "train", "test"), and an outcome for each contestant, learning rate and seed, in order.
    """

    def run_tasks(tasks: Sequence[Callable[[], Any]], what: str, unit: str) -> list[Any]:
        return _run_tasks(workers or _default_workers(), tasks, what, unit)

    shots = _draw_all(budget, run_tasks)
    seeds = budget.seeds
    what = "a network learns letters" if len(seeds) == 1 else f"{len(seeds)} networks learn letters"
    pretraining = [partial(pretrain_letters, shots["letters"], seed, budget) for seed in seeds]
    networks = dict(zip(seeds, run_tasks(pretraining, what, " networks"), strict=True))
    training = []
    for contestant in contestants:
        for rate in budget.rates:
            for seed in seeds:
                arguments = (contestant, rate, seed, networks[seed], shots["train"], shots["test"], budget)
                training.append(partial(train_contestant, *arguments))
    return shots, run_tasks(training, "training", " runs")


def select_rate(contestant: Contestant, outcomes: Sequence[Outcome], budget: Budget) -> Selection:
    """Choose the learning rate whose runs ended best on held-out classes; test classes are not looked at."""
    by_rate: dict[float, list[Outcome]] = {rate: [] for rate in budget.rates}
    for outcome in outcomes:
        if outcome.contestant == contestant.name:
            by_rate[outcome.rate].append(outcome)
    best = max(by_rate, key=lambda rate: fmean(outcome.curve[-1][1] for outcome in by_rate[rate]))
    return Selection(contestant, best, sorted(by_rate[best], key=lambda outcome: outcome.seed))


def create_pictures(budget: Budget, split: str) -> Pictures:
    """Create the data set of "letters" (single ones), "train" or "test"."""
    if split == "letters":
        return glyphs(cells=1, size=32, per_class=budget.pictures, train_classes=budget.train_classes, test_classes=0)
    both = glyphs(per_class=budget.pictures, train_classes=budget.train_classes, test_classes=budget.test_classes)
    return both.split(split)


def _default_workers() -> int:
    """One for each usable core: one more than for data loaders, whose main process works as well."""
    return min(default_workers() + 1, MOST_WORKERS)


def _draw_all(budget: Budget, run_tasks: Callable[..., list[Any]]) -> dict[str, Shots]:
    shots = {}
    for split in ("letters", "train", "test"):
        pictures = create_pictures(budget, split)
        starts = range(0, len(pictures), DRAWN_AT_ONCE)
        tasks = [partial(_draw_some, budget, split, first) for first in starts]
        chunks = run_tasks(tasks, f"drawing {split}", " chunks")
        pixels, cells = zip(*chunks, strict=True)
        labels = pictures.labels - pictures.labels.min()
        shots[split] = Shots(np.concatenate(pixels), labels, np.concatenate(cells))
    return shots


def _draw_some(budget: Budget, split: str, first: int) -> Any:
    return draw(create_pictures(budget, split), first, first + DRAWN_AT_ONCE)


def _run_tasks(workers: int, tasks: Sequence[Callable[[], Result]], what: str, unit: str) -> list[Result]:
    """Run tasks in processes and return their results in order; the first error is raised at once."""
    timeout = TIMEOUT if workers > 1 else None
    # Workers share large arrays as files in memory; "c" makes their copies writable, as torch wants them.
    parallel = Parallel(n_jobs=workers, return_as="generator", timeout=timeout, mmap_mode="c")
    results = []
    try:
        with progress(len(tasks), what, unit) as tick:
            for result in parallel(delayed(_on_one_thread)(task) for task in tasks):
                results.append(result)
                tick(1)
    except multiprocessing.TimeoutError as error:
        raise RunFailed(f"{what}: no result in {TIMEOUT} seconds; try --workers 1") from error
    return results


def _on_one_thread(task: Callable[[], Result]) -> Result:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return task()
    finally:
        torch.set_num_threads(threads)
