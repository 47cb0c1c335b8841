"""Races of several contestants, rates and seeds on drawn glyphs, in as many processes as there are cores.

Every process computes on one thread, so that the figures do not depend on the number of cores.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import numpy as np
import torch

from lookalike._util.progress import progress
from lookalike.data.loading import MOST_WORKERS, default_workers
from lookalike.demo.race import Budget, Contestant, Outcome, Shots, draw, drawing, learn_letters, race
from lookalike.report.seeds import deviation

Done = TypeVar("Done")

DRAWN_AT_ONCE = 200


@dataclass(frozen=True)
class Result:
    """Of one contestant: its outcomes with the rate that was best on held-out classes."""

    contestant: Contestant
    rate: float
    outcomes: list[Outcome]

    def mean(self, name: str) -> float:
        return fmean(outcome.figures[name] for outcome in self.outcomes)

    def spread(self, name: str) -> float | None:
        return deviation([outcome.figures[name] for outcome in self.outcomes])

    @property
    def on_letter(self) -> float:
        return fmean(outcome.on_letter for outcome in self.outcomes)


def race_all(
    contestants: Sequence[Contestant], budget: Budget, workers: int | None = None
) -> tuple[dict[str, Shots], list[Outcome]]:
    """The pictures ("letters", "train", "test"), and an outcome for each contestant, rate and seed, in that order."""
    runs = [(contestant, rate, seed) for contestant in contestants for rate in budget.rates for seed in budget.seeds]
    with TemporaryDirectory(prefix="lookalike-glyphs-") as temporary:
        folder = Path(temporary)
        counter = get_context("spawn").Value("q", 0)
        with ProcessPoolExecutor(
            workers or _default_workers(),
            mp_context=get_context("spawn"),
            initializer=_prepare,
            initargs=(folder, counter),
        ) as pool:
            try:
                shots = _draw_all(pool, budget, folder)
                _learn_all(pool, budget, counter)
                return shots, _race_all(pool, runs, budget, counter)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def chosen(contestant: Contestant, outcomes: list[Outcome], budget: Budget) -> Result:
    """With the rate whose runs ended best on held-out classes; the test classes have no say."""
    own = [outcome for outcome in outcomes if outcome.contestant == contestant.name]
    by_rate = {rate: [outcome for outcome in own if outcome.rate == rate] for rate in budget.rates}
    best = max(by_rate, key=lambda rate: fmean(outcome.curve[-1][1] for outcome in by_rate[rate]))
    return Result(contestant, best, sorted(by_rate[best], key=lambda outcome: outcome.seed))


def _default_workers() -> int:
    """One for each core that this process may use: one more than for loaders, whose process works as well."""
    return min(default_workers() + 1, MOST_WORKERS)


def _draw_all(pool: ProcessPoolExecutor, budget: Budget, folder: Path) -> dict[str, Shots]:
    shots = {}
    splits = {name: drawing(budget, name) for name in ("letters", "train", "test")}
    with progress(sum(map(len, splits.values())), "drawing") as tick:
        for name, pictures in splits.items():
            starts = range(0, len(pictures), DRAWN_AT_ONCE)
            pieces = [pool.submit(_draw_some, budget, name, first, first + DRAWN_AT_ONCE) for first in starts]
            drawn = []
            for piece in pieces:
                drawn.append(piece.result())
                tick(len(drawn[-1][0]))
            labels = pictures.labels - pictures.labels.min()
            shots[name] = Shots(np.concatenate([p for p, _ in drawn]), labels, np.concatenate([c for _, c in drawn]))
            np.savez(folder / f"{name}.npz", **shots[name]._asdict())
    return shots


def _learn_all(pool: ProcessPoolExecutor, budget: Budget, counter: Any) -> None:
    tasks = [pool.submit(_learn_one, seed, budget) for seed in budget.seeds]
    what = "a network learns letters" if len(tasks) == 1 else f"{len(tasks)} networks learn letters"
    _followed(tasks, what, len(tasks) * budget.letter_steps, counter)


def _race_all(
    pool: ProcessPoolExecutor, runs: list[tuple[Contestant, float, int]], budget: Budget, counter: Any
) -> list[Outcome]:
    tasks = [pool.submit(_race_one, *run, budget) for run in runs]
    return _followed(tasks, "the race", len(runs) * budget.steps, counter)


def _followed(tasks: list[Future[Done]], what: str, steps: int, counter: Any) -> list[Done]:
    """What the tasks give, once all are done, which the workers' counter of steps shows meanwhile."""
    waiting, shown = set(tasks), counter.value
    with progress(steps, what, " steps") as tick:
        while waiting:
            finished, waiting = wait(waiting, timeout=0.1, return_when=FIRST_EXCEPTION)
            for task in finished:
                task.result()  # raises what it raised
            now = counter.value
            tick(now - shown)
            shown = now
    return [task.result() for task in tasks]


# In the worker processes.
_FOLDER = Path()
_TICK: Callable[[int], None] = lambda _: None  # noqa: E731


def _prepare(folder: Path, counter: Any) -> None:
    global _FOLDER, _TICK
    torch.set_num_threads(1)

    def tick(count: int) -> None:
        with counter.get_lock():
            counter.value += count

    _FOLDER, _TICK = folder, tick


def _draw_some(budget: Budget, split: str, first: int, end: int) -> Any:
    return draw(drawing(budget, split), first, end)


def _learn_one(seed: int, budget: Budget) -> None:
    torch.save(learn_letters(_drawn("letters"), seed, budget, _TICK), _network_of(seed))


def _race_one(contestant: Contestant, rate: float, seed: int, budget: Budget) -> Outcome:
    backbone = torch.load(_network_of(seed), weights_only=True)
    return race(contestant, rate, seed, backbone, _drawn("train"), _drawn("test"), budget, _TICK)


def _drawn(split: str) -> Shots:
    return Shots(**np.load(_FOLDER / f"{split}.npz"))


def _network_of(seed: int) -> Path:
    return _FOLDER / f"network-{seed}.pt"
