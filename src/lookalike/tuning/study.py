"""Hyperparameter search with Optuna, shared by several workers.

A trial trains every run of a protocol with the proposed settings. The objective is the mean of the monitored metric on
the held-out classes; the test classes are not used.

    DIR/tuning.json            what is searched, and the name of the Optuna study
    DIR/journal.log            Optuna's journal, unless the study is in a database
    DIR/asking/lease-*         lease of the worker that chooses its next trial
    DIR/trials/<number>/       lease-* of the trial's worker; log.txt; runs/f1-r1, the folders of the runs

Workers share DIR. The worker that holds ``asking`` takes over a trial whose worker died, or asks Optuna for a new one,
and takes its lease before the next worker may ask. So no trial is computed twice, and there are never too many trials.
Optuna's own heartbeat does not work with a journal. Proposals depend on (seed, trial number) only, not on the worker.
"""

import json
import shutil
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from statistics import fmean
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from lookalike._util.files import write_text
from lookalike._util.signals import Stopped
from lookalike._util.untrusted import read_json
from lookalike.experiments import leases
from lookalike.experiments.results import CONTENT_SINCE
from lookalike.models.weight_files import first_line
from lookalike.training.run import train
from lookalike.tuning.results import TrialResult, best_trial
from lookalike.tuning.sampler import distributions, make_sampler
from lookalike.tuning.space import describe_params
from lookalike.tuning.storage import open_storage, url_digest
from lookalike.tuning.task import Task

POLL_EVERY = 2.0  # seconds
STARTUP_TRIALS = 5  # finished before any is pruned
LEAST_FOR_IMPORTANCE = 4  # finished trials
STATES = {TrialState.COMPLETE: "done", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
Say = Callable[[str], None]


class Tuning:
    """A search in a folder, new or resumed.

    Args:
        task: what is searched.
        out: folder of the search, shared by all workers.
        storage: URL of a database for Optuna; None: a journal in ``out``.
        expires: seconds without a sign after which a worker counts as dead.

    Raises:
        ValueError: the folder holds another search.
    """

    def __init__(self, task: Task, out: Path, storage: str | None = None, expires: float = leases.EXPIRES) -> None:
        self.task, self.out, self.expires = task, out, expires
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        description = {**task.description(), "storage": url_digest(storage)}
        file = out / "tuning.json"
        if file.exists():  # refuse another search before anything is written
            _require_same_search(read_json(file), description, out)
        optuna_storage = open_storage(storage, out / "journal.log")
        with self._exclusive():
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

    def work(self, trials: int, say: Say = print) -> list[TrialResult]:
        """Compute trials until there are enough, together with the other workers.

        Raises:
            Stopped: a stop was requested; any worker can resume the interrupted trial.
        """
        while True:
            next_trial = self._next_trial(trials)
            if next_trial is not None:
                trial, lease = next_trial
                self._run_trial(trial, lease, trials, say)
            elif any(trial.state == "running" for trial in self.trials()):
                time.sleep(min(POLL_EVERY, self.expires / 2))
            else:
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

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """One worker at a time. If a worker on another machine dies in here, its lease must expire first."""
        lease = leases.acquire(self.out / "asking", self.expires)
        while lease is None:
            time.sleep(min(0.1, self.expires / 4))
            lease = leases.acquire(self.out / "asking", self.expires)
        try:
            yield
        finally:
            lease.release()

    def _next_trial(self, trials: int) -> tuple[Trial, leases.Lease] | None:
        """A trial whose worker died, or a new one, with its lease; None if there are enough trials."""
        with self._exclusive():
            existing = self.study.get_trials(deepcopy=False)
            for frozen in existing:
                if frozen.state == TrialState.RUNNING:
                    lease = leases.acquire(self.folder(frozen.number), self.expires)
                    if lease is None:
                        continue
                    if self.study.get_trials(deepcopy=False)[frozen.number].state == TrialState.RUNNING:
                        return self._complete_proposal(frozen), lease
                    lease.discard()  # its worker finished it in between
            if len(existing) >= trials:
                return None
            trial = self._propose(len(existing))
            lease = leases.acquire(self.folder(trial.number), self.expires)
            if lease is None:
                raise ValueError(f"{self.folder(trial.number)} belongs to another search: choose another --out")
            return trial, lease

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

    def _run_trial(self, trial: Trial, lease: leases.Lease, trials: int, say: Say) -> None:
        """Train a trial and tell Optuna how it ended."""
        started, number = time.monotonic(), trial.number
        try:
            with lease.kept_alive_or_stop(f"trial {number}", self.expires, say):
                runs = self._train(trial)
        except (Stopped, KeyboardInterrupt):
            raise
        except optuna.TrialPruned:
            ending = "pruned"
            self.study.tell(trial, state=TrialState.PRUNED)
        except Exception as error:
            if isinstance(error, OSError) or isinstance(error.__cause__, OSError):
                raise  # the machine's fault, not that of the settings: the trial can be resumed
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
        finally:
            lease.release()
        for state in self.folder(number).glob("runs/*/state"):
            shutil.rmtree(state, ignore_errors=True)  # a finished run is not resumed
        seconds = time.monotonic() - started
        text = f"trial {number}: {describe_params(trial.params)}: {ending}, {seconds:.0f} s"
        say(f"{text}{self._describe_progress()} of {trials}")

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
        with (folder / "log.txt").open("a", buffering=1, encoding="utf-8") as log, redirect_stderr(log):
            try:
                plan = self.task.plan(trial.params)
                for number, cell in enumerate(plan.cells):
                    run_folder = folder / "runs" / f"f{cell.fold + 1}-r{cell.repeat + 1}"
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
    """A search may be resumed with more trials, more workers and another RESULTS_VERSION, but with nothing else."""
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
