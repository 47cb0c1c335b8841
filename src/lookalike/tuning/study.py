"""Hyperparameter search with Optuna.

A trial trains every run of a protocol with the proposed settings. The objective is the mean of the monitored metric on
the held-out classes; the test classes are not used.

    DIR/tuning.json            what is searched, and the name of the Optuna study
    DIR/journal.log            Optuna's journal, unless the study is in a database
    DIR/trials/<number>/       log.txt; runs/f1-r1, the folders of the runs

One command at a time works on DIR. It asks Optuna for trials, which an executor computes; the process of a trial
reports to Optuna's storage by itself. Trials that an earlier command left unfinished come first. Proposals depend on
(seed, trial number) and on the trials finished by then, not on where trials run.
"""

import json
import shutil
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from statistics import fmean
from typing import Any, NamedTuple

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from lookalike._util.files import write_text
from lookalike._util.folder_lock import FolderLock, wait_until_free
from lookalike._util.signals import Stopped
from lookalike._util.untrusted import read_json
from lookalike.executors import Executor
from lookalike.executors.local import LocalExecutor
from lookalike.experiments.nodes import inspect_node, probe
from lookalike.experiments.results import CONTENT_SINCE
from lookalike.experiments.run_log import RunLog
from lookalike.models.weight_files import first_line
from lookalike.training.run import train
from lookalike.tuning.backend import distributions, make_sampler, open_storage, url_digest
from lookalike.tuning.results import TrialResult, best_trial
from lookalike.tuning.space import describe_params
from lookalike.tuning.task import Task

STARTUP_TRIALS = 5  # finished before any is pruned
LEAST_FOR_IMPORTANCE = 4  # finished trials
STATES = {TrialState.COMPLETE: "done", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
Say = Callable[[str], None]


class TrialOutcome(NamedTuple):
    """How the task of a trial ended: a line to print, and the signal that stopped it (0: none)."""

    line: str
    stopped: int = 0


class Tuning:
    """A search in a folder, new or resumed.

    Args:
        task: what is searched.
        out: folder of the search.
        storage: URL of a database for Optuna; None: a journal in ``out``.

    Raises:
        ValueError: the folder holds another search.
    """

    def __init__(self, task: Task, out: Path, storage: str | None = None) -> None:
        self.task, self.out, self.storage = task, out, storage
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        description = {**task.description(), "storage": url_digest(storage)}
        file = out / "tuning.json"
        if file.exists():  # refuse another search before anything is written
            _require_same_search(read_json(file), description, out)
        optuna_storage = open_storage(storage, out / "journal.log")
        if not file.exists():
            name = f"{out.resolve().name} {token_hex(4)}"
            write_text(file, json.dumps({"study": name, **description}, indent=2) + "\n")
        stored = read_json(file)
        _require_same_search(stored, description, out)
        pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
        if task.prune:  # nothing is learnt at step 0
            pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS, n_warmup_steps=1)
        self.study = optuna.create_study(
            storage=optuna_storage,
            study_name=stored["study"],
            direction="maximize",
            load_if_exists=True,
            pruner=pruner,
        )
        self.is_outdated = stored["version" if "version" in stored else "code"] != description["version"]

    def work(self, trials: int, say: Say = print, executor: Executor | None = None) -> list[TrialResult]:
        """Compute trials until there are enough.

        Args:
            trials: number of trials that the search has in the end.
            say: receives one line for each finished trial.
            executor: where trials run; None: in this process.

        Raises:
            FolderInUse: another command works on the folder.
            Stopped: a stop was requested; the same command continues.
            ValueError: nodes of a cluster see other files or have other versions.
        """
        executor = executor or LocalExecutor()
        with FolderLock(self.out):
            if sum(result.state != "running" for result in self.trials()) < trials:
                with probe(self.out.resolve(), {(self.task.source, 0): self.task.pictures}) as argument:
                    executor.check_nodes(inspect_node, argument)
            for _, outcome in executor.run(compute_trial, self._proposals(trials), self):
                if outcome.stopped:
                    raise Stopped(outcome.stopped)
                say(f"{outcome.line}{self._describe_progress()} of {trials}")
        return self.trials()

    def trials(self) -> list[TrialResult]:
        """All trials of the study, in order."""
        return [_trial_result(trial) for trial in self.study.get_trials(deepcopy=False)]

    def importance(self) -> dict[str, float]:
        """The share of the objective's variance by setting (functional ANOVA); {} if there are too few trials."""
        values = [trial.value for trial in self.trials() if trial.value is not None]
        if len(set(values)) < 2 or len(values) < LEAST_FOR_IMPORTANCE:
            return {}
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            shares = optuna.importance.get_param_importances(self.study, evaluator=evaluator)
        return {name: float(share) for name, share in shares.items()}

    def folder(self, number: int) -> Path:
        """The folder of a trial."""
        return self.out / "trials" / f"{number:04d}"

    def _proposals(self, trials: int) -> Iterator[int]:
        """Numbers of the trials to compute: unfinished ones, then new ones until there are enough."""
        existing = self.study.get_trials(deepcopy=False)
        for frozen in existing:
            if frozen.state == TrialState.RUNNING:
                self._complete_proposal(frozen)
                yield frozen.number
        for number in range(len(existing), trials):
            yield self._propose(number).number

    def _propose(self, number: int) -> Trial:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that samplers are experimental
            self.study.sampler = make_sampler(self.task, number)
            return self.study.ask(distributions(self.task.space))

    def _complete_proposal(self, interrupted: FrozenTrial) -> Trial:
        """Propose the settings that a worker had not yet proposed when it died."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.study.sampler = make_sampler(self.task, interrupted.number)
            trial = Trial(self.study, interrupted._trial_id)
            for name, distribution in distributions(self.task.space).items():
                trial._suggest(name, distribution)
            return trial

    def run_trial(self, number: int) -> TrialOutcome:
        """Train a trial and tell Optuna how it ended.

        Raises:
            OSError: the machine's fault, not that of the settings; the trial can be resumed.
        """
        frozen = self.study.get_trials(deepcopy=False)[number]
        if frozen.state.is_finished():
            return TrialOutcome(f"trial {number}: done before its worker was lost")
        trial = Trial(self.study, frozen._trial_id)
        self.folder(number).mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        try:
            runs = self._train(trial)
        except Stopped as stopped:
            return TrialOutcome(f"trial {number}: stopped", stopped.signal_number)
        except optuna.TrialPruned:
            ending = "pruned"
            self.study.tell(trial, state=TrialState.PRUNED)
        except Exception as error:
            if isinstance(error, OSError) or isinstance(error.__cause__, OSError):
                raise
            ending = f"failed: {first_line(error)}"
            trial.set_user_attr("error", first_line(error))
            self.study.tell(trial, state=TrialState.FAIL)
        else:
            values = [run["best"][self.task.monitor] for run in runs]
            steps = sum(run["steps"] for run in runs)
            trial.set_user_attr("runs", values)
            trial.set_user_attr("steps", steps)
            trial.set_user_attr("seconds", sum(run["seconds"] for run in runs))
            ending = f"{self.task.monitor} {100 * fmean(values):.2f}, {steps} steps"
            self.study.tell(trial, fmean(values))
        for state in self.folder(number).glob("runs/*/state"):
            shutil.rmtree(state, ignore_errors=True)  # a finished run is not resumed
        seconds = time.monotonic() - started
        return TrialOutcome(f"trial {number}: {describe_params(trial.params)}: {ending}, {seconds:.0f} s")

    def __getstate__(self) -> dict[str, Any]:
        """Without Optuna's connection: the process of a trial opens its own."""
        return {"task": self.task, "out": self.out.resolve(), "storage": self.storage}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _describe_progress(self) -> str:
        results = self.trials()
        finished = sum(result.state != "running" for result in results)
        best = best_trial(results)
        if best is None:
            return f"; {finished}"
        return f"; best {100 * (best.value or 0):.2f} by trial {best.number}; {finished}"

    def _train(self, trial: Trial) -> list[dict[str, Any]]:
        """The objective: every run of the protocol, resumed if interrupted.

        Raises:
            TrialPruned: the trial is not worth finishing.
        """
        folder = self.folder(trial.number)
        finished: list[dict[str, Any]] = []
        name = f"{self.task.source}: trial {trial.number}"
        with (folder / "log.txt").open("a", buffering=1, encoding="utf-8") as log, RunLog(log, sys.stderr, name):
            try:
                plan = self.task.plan(trial.params)
                for number, cell in enumerate(plan.cells):
                    run_folder = folder / "runs" / f"f{cell.fold + 1}-r{cell.repeat + 1}"
                    wait_until_free(run_folder)
                    settings = replace(cell.settings, out=run_folder, resume=True)
                    report = self._reporter(trial, number * (settings.steps + 1), finished)
                    finished.append(train(settings, plan.pictures_of(cell), on_evaluation=report))
            except (Stopped, optuna.TrialPruned):
                raise
            except Exception:
                traceback.print_exc(file=log)
                raise
        return finished

    def _reporter(
        self, trial: Trial, first_step: int, finished: Sequence[dict[str, Any]]
    ) -> Callable[[int, dict[str, float]], None]:
        """Reports to Optuna, at every evaluation, the mean over the finished runs and the current one."""
        values = [run["best"][self.task.monitor] for run in finished]

        def on_evaluation(step: int, metrics: dict[str, float]) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a step that was reported before the worker died
                trial.report(fmean([*values, metrics[self.task.monitor]]), first_step + step)
            if trial.should_prune():
                raise optuna.TrialPruned

        return on_evaluation


def compute_trial(number: int, tuning: Tuning) -> TrialOutcome:
    """Compute one trial, wherever the executor calls this."""
    return tuning.run_trial(number)


def _trial_result(trial: FrozenTrial) -> TrialResult:
    attributes = trial.user_attrs
    return TrialResult(
        number=trial.number,
        state=STATES.get(trial.state, "running"),
        params=dict(trial.params),
        value=trial.value if trial.state == TrialState.COMPLETE else None,
        curve=dict(trial.intermediate_values),
        runs=attributes.get("runs", []),
        steps=attributes.get("steps"),
        seconds=attributes.get("seconds"),
        error=attributes.get("error", ""),
    )


def _require_same_search(stored: dict[str, Any], description: dict[str, Any], out: Path) -> None:
    """A search may be resumed with more trials and another RESULTS_VERSION, but with nothing else."""
    for name, value in description.items():
        if name == "version" or stored.get(name) == value:
            continue
        if name == "data" and stored.get("version", 0) < CONTENT_SINCE:
            continue
        if name == "storage":
            raise ValueError(f"the search in {out} is stored elsewhere: use the same --storage as before")
        raise ValueError(
            f"{out} holds another search: {name} was {stored.get(name)} and is {value}; choose another --out"
        )
