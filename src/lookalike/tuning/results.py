"""What a search has found, for tables, plots and machines; nothing of Optuna's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lookalike.tuning.space import Space


@dataclass(frozen=True)
class Record:
    """What is known of a trial. ``value`` and ``runs`` are fractions."""

    number: int
    state: str  # done, pruned, failed or running
    params: dict[str, Any]
    value: float | None = None
    curve: dict[int, float] = field(default_factory=dict)  # what was reported, by step
    runs: list[float] = field(default_factory=list)
    steps: int | None = None
    seconds: float | None = None
    error: str = ""


@dataclass(frozen=True)
class Findings:
    title: str
    about: Mapping[str, str]  # what was searched and how, in words
    monitor: str
    space: Space
    records: list[Record]
    importance: dict[str, float]
    train: str = ""  # the line that trains with the best settings
    config: str = ""  # the same as YAML
    open: Sequence[str] = ()  # what the source of the plan leaves unsaid
    published: dict[int, float] = field(default_factory=dict)  # by trial, in percent, on other data perhaps
    published_as: str = ""

    @property
    def done(self) -> list[Record]:
        return [record for record in self.records if record.state == "done" and record.value is not None]

    @property
    def best(self) -> Record | None:
        return best_of(self.records)


def best_of(records: Sequence[Record]) -> Record | None:
    done = [record for record in records if record.state == "done"]
    return max(done, key=lambda record: record.value or 0.0, default=None)
