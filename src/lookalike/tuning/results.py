"""Results of a hyperparameter search for tables, plots and scripts, without Optuna."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lookalike._util.untrusted import parse_yaml
from lookalike.experiments.published import published
from lookalike.tuning.plans import TuningPlan
from lookalike.tuning.space import Space, short_names
from lookalike.tuning.task import Task


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

    def as_dict(self) -> dict[str, Any]:
        """The results as plain values for JSON."""
        best = None
        if self.best is not None:
            best = {**vars(self.best), "train": self.train, "config": parse_yaml(self.config)}
        return {
            "monitor": self.monitor,
            "best": best,
            "trials": [vars(trial) for trial in self.trials],
            "importance": self.importance,
            "searched": {name: str(axis) for name, axis in self.space.items()},
        }


def collect_results(
    task: Task,
    plan: TuningPlan,
    trials: list[TrialResult],
    importance: dict[str, float],
    train: str = "",
    config: str = "",
) -> StudyResults:
    """Collect what the report of a search shows; ``train`` and ``config`` are the best settings as command and YAML."""
    published_means = _published_means(task, trials, plan.published)
    source = ""
    if published_means:
        source = f"thesis Table {plan.published}, CUB"
    return StudyResults(
        plan.title or f"Tuning of {task.loss} + {task.pooling}",
        _describe(task),
        task.monitor,
        task.space,
        trials,
        importance,
        train,
        config,
        plan.open,
        published_means,
        source,
    )


def best_trial(trials: Sequence[TrialResult]) -> TrialResult | None:
    """The trial with the highest value; None if no trial is done."""
    done = [trial for trial in trials if trial.state == "done"]
    return max(done, key=lambda trial: trial.value or 0.0, default=None)


def _published_means(task: Task, trials: list[TrialResult], table: str) -> dict[int, float]:
    """Published results with the settings of a trial, by the trial's number."""
    means: dict[int, float] = {}
    if not table:
        return means
    short = short_names(task.space)
    for trial in trials:
        searched = {short[name]: value for name, value in trial.params.items()}
        for result in published(table=table, loss=task.loss.name, settings=searched, metric=task.monitor) or ():
            means[trial.number] = result.mean
    return means


def _describe(task: Task) -> dict[str, str]:
    description = {
        "protocol": task.protocol.title,
        "data": task.source,
        "loss": str(task.loss),
        "pooling": str(task.pooling),
        "methods": " + ".join(map(str, task.methods)) or "none",
        "sampler": task.sampler,
        "pruning": "none",
    }
    if task.prune:
        description["pruning"] = "below the median"
    for name, value in task.overrides.items():
        description[f"set: {name}"] = str(value)
    return description
