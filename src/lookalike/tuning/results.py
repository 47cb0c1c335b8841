"""Results of a hyperparameter search for tables, plots and scripts. Does not need Optuna."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lookalike.tuning.space import Space


@dataclass(frozen=True)
class TrialResult:
    """One trial.

    Attributes:
        number: of the trial, from 0.
        state: done, pruned, failed or running.
        params: the settings that were tried, by name.
        value: the objective, a fraction; None unless the trial is done.
        curve: intermediate values by step.
        runs: the objective of every run of the protocol.
        steps: of all runs.
        seconds: of all runs.
        error: why it failed.
    """

    number: int
    state: str
    params: dict[str, Any]
    value: float | None = None
    curve: dict[int, float] = field(default_factory=dict)
    runs: list[float] = field(default_factory=list)
    steps: int | None = None
    seconds: float | None = None
    error: str = ""


@dataclass(frozen=True)
class StudyResults:
    """Everything that the report of a search shows.

    Attributes:
        title: of the page.
        about: what was searched and how, as text by name.
        monitor: name of the metric that is maximised.
        space: what was searched.
        trials: all of them, in order.
        importance: share of the variance by setting.
        train: the command that trains with the best settings.
        config: the same as YAML.
        open: what the source of the plan leaves open.
        published: published values by trial, in percent, perhaps on other data.
        published_as: title of their column.
    """

    title: str
    about: Mapping[str, str]
    monitor: str
    space: Space
    trials: list[TrialResult]
    importance: dict[str, float]
    train: str = ""
    config: str = ""
    open: Sequence[str] = ()
    published: dict[int, float] = field(default_factory=dict)
    published_as: str = ""

    @property
    def done(self) -> list[TrialResult]:
        """The trials that have a value."""
        return [trial for trial in self.trials if trial.state == "done" and trial.value is not None]

    @property
    def best(self) -> TrialResult | None:
        """The trial with the highest value; None if no trial is done."""
        return best_trial(self.trials)


def best_trial(trials: Sequence[TrialResult]) -> TrialResult | None:
    """The trial with the highest value; None if no trial is done."""
    done = [trial for trial in trials if trial.state == "done"]
    return max(done, key=lambda trial: trial.value or 0.0, default=None)
