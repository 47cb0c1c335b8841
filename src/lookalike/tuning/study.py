"""Search for good settings by Optuna: a trial is every run of a protocol with the settings that Optuna proposes, and is
judged by the mean of the monitored figure on the held-out classes. The test classes have no part in it.

    DIR/tuning.json            what is searched, and the name of the study
    DIR/journal.log            Optuna's records, unless they are in a data base of yours
    DIR/asking/lease-*         who chooses what to do next, one at a time
    DIR/trials/<number>/       lease-*, who is at it; log.txt; runs/f1-r1, the folders of the runs

Workers share DIR. Whoever has ``asking`` takes up a trial whose worker died, or asks Optuna for another, and claims it
before the next may ask; so no trial is done twice, and there are never more than were wanted. Optuna's own heartbeat
would not do: its journal has none. Proposals come from (seed, number of the trial), whichever worker asks.
"""

import json
import os
import shutil
import signal
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
from lookalike.experiments import leases
from lookalike.experiments.results import RESULTS_VERSION
from lookalike.training.run import train
from lookalike.tuning.results import Record, best_of
from lookalike.tuning.space import describe_params
from lookalike.tuning.storage import digest_of, distributions, make_sampler, open_storage
from lookalike.tuning.task import Task

LOOK_AGAIN = 2.0  # seconds
STARTUP = 5  # trials that are finished before any is pruned
STATES = {TrialState.COMPLETE: "done", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
Say = Callable[[str], None]


class Tuning:
    """A search in a folder. Makes the folder, or finds it, and refuses one that holds another search."""

    def __init__(self, task: Task, out: Path, storage: str | None = None, expires: float = leases.EXPIRES) -> None:
        self.task, self.out, self.expires = task, out, expires
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        about = {**task.about(), "storage": digest_of(storage)}
        if (out / "tuning.json").exists():  # before anything is written
            _require_same(json.loads((out / "tuning.json").read_text(encoding="utf-8")), about, out)
        kept = open_storage(storage, out / "journal.log")
        with self._alone():
            if not (out / "tuning.json").exists():
                name = f"{out.resolve().name} {token_hex(4)}"
                write_text(out / "tuning.json", json.dumps({"study": name, **about}, indent=2) + "\n")
        known = json.loads((out / "tuning.json").read_text(encoding="utf-8"))
        _require_same(known, about, out)
        pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
        if task.prune:  # at step 0 nothing has been learnt yet
            pruner = optuna.pruners.MedianPruner(n_startup_trials=STARTUP, n_warmup_steps=1)
        self.study = optuna.create_study(
            storage=kept, study_name=known["study"], direction="maximize", load_if_exists=True, pruner=pruner
        )
        self.changed_code = known["code"] != str(RESULTS_VERSION)

    def work(self, trials: int, say: Say = print) -> list[Record]:
        """Do what is left of so many trials, together with whoever else is at it; then all there are.

        Raises ``Stopped`` when asked to stop; the trial that was begun is gone on with by anybody.
        """
        while True:
            found = self._next(trials)
            if found is not None:
                self._do(*found, trials, say)
            elif any(record.state == "running" for record in self.records()):
                time.sleep(min(LOOK_AGAIN, self.expires / 2))
            else:
                return self.records()

    def records(self) -> list[Record]:
        return [_record(trial) for trial in self.study.get_trials(deepcopy=False)]

    def importance(self) -> dict[str, float]:
        """The share of the figure's variance that each setting explains (functional ANOVA); {} where it cannot tell."""
        done = [record for record in self.records() if record.value is not None]
        if len({record.value for record in done}) < 2 or len(done) < 4:
            return {}
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = optuna.importance.get_param_importances(self.study, evaluator=evaluator)
        return {name: float(value) for name, value in found.items()}

    def folder(self, number: int) -> Path:
        return self.out / "trials" / f"{number:04d}"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One worker at a time; one that died in here, on another machine, is waited for until its claim expires."""
        while (held := leases.acquire(self.out / "asking", self.expires)) is None:
            time.sleep(min(0.1, self.expires / 4))
        try:
            yield
        finally:
            held.release()

    def _next(self, trials: int) -> tuple[Trial, leases.Lease] | None:
        """A trial that nobody is at: one whose worker died, or a new one."""
        with self._alone():
            known = self.study.get_trials(deepcopy=False)
            for frozen in known:
                if frozen.state == TrialState.RUNNING:
                    held = leases.acquire(self.folder(frozen.number), self.expires)
                    if held is not None:
                        return self._proposed(frozen), held
            if len(known) >= trials:
                return None
            trial = self._proposed(None, len(known))
            held = leases.acquire(self.folder(trial.number), self.expires)
            if held is None:
                raise ValueError(f"{self.folder(trial.number)} belongs to another search: choose another --out")
            return trial, held

    def _proposed(self, begun: FrozenTrial | None, number: int = 0) -> Trial:
        """With all settings; a worker may have died when it had proposed some of them."""
        number = number if begun is None else begun.number
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that samplers are experimental
            self.study.sampler = make_sampler(self.task, number)
            if begun is None:
                return self.study.ask(distributions(self.task.space))
            trial = Trial(self.study, begun._trial_id)
            for name, distribution in distributions(self.task.space).items():
                trial._suggest(name, distribution)
            return trial

    def _do(self, trial: Trial, held: leases.Lease, trials: int, say: Say) -> None:
        started, number = time.monotonic(), trial.number

        def on_lost() -> None:
            say(f"trial {number}: another worker has taken this over, as this one seemed dead; stopping")
            os.kill(os.getpid(), signal.SIGTERM)

        ending = ""
        try:
            with held.kept_alive(on_lost, min(leases.TOUCH_EVERY, self.expires / 4)):
                figures = self._train(trial)
        except (Stopped, KeyboardInterrupt):
            raise
        except optuna.TrialPruned:
            ending = "pruned"
            self.study.tell(trial, state=TrialState.PRUNED)
        except Exception as error:
            if isinstance(error, OSError) or isinstance(error.__cause__, OSError):
                raise  # the machine's fault, not that of the settings: to be gone on with
            problem = str(error).splitlines()[0] if str(error) else type(error).__name__
            ending = f"failed: {problem}"
            trial.set_user_attr("error", problem)
            self.study.tell(trial, state=TrialState.FAIL)
        else:
            trial.set_user_attr("runs", [figure["best"][self.task.monitor] for figure in figures])
            trial.set_user_attr("steps", sum(figure["steps"] for figure in figures))
            trial.set_user_attr("seconds", sum(figure["seconds"] for figure in figures))
            value = fmean(trial.user_attrs["runs"])
            ending = f"{self.task.monitor} {100 * value:.2f}, {trial.user_attrs['steps']} steps"
            self.study.tell(trial, value)
        finally:
            held.release()
        for state in self.folder(number).glob("runs/*/state"):
            shutil.rmtree(state, ignore_errors=True)  # nobody goes on with it
        records = self.records()
        over = sum(record.state != "running" for record in records)
        best = best_of(records)
        standing = f"; best {100 * (best.value or 0):.2f} by trial {best.number}" if best else ""
        seconds = time.monotonic() - started
        say(f"trial {number}: {describe_params(trial.params)}: {ending}, {seconds:.0f} s{standing}; {over} of {trials}")

    def _train(self, trial: Trial) -> list[dict[str, Any]]:
        """Every run of the protocol, gone on with where it was; raises ``TrialPruned`` where it is not worth it."""
        folder, finished = self.folder(trial.number), list[dict[str, Any]]()
        with (folder / "log.txt").open("a", buffering=1, encoding="utf-8") as log, redirect_stderr(log):
            try:
                plan = self.task.plan(trial.params)
                for place, cell in enumerate(plan.cells):
                    run = folder / "runs" / f"f{cell.fold + 1}-r{cell.repeat + 1}"
                    settings = replace(cell.settings, out=run, resume=True)
                    told = self._watch(trial, place * (settings.steps + 1), [each["best"] for each in finished])
                    finished.append(train(settings, plan.pictures_of(cell), on_evaluation=told))
            except (Stopped, optuna.TrialPruned):
                raise
            except Exception:
                traceback.print_exc(file=log)
                raise
        return finished

    def _watch(
        self, trial: Trial, offset: int, before: Sequence[dict[str, float]]
    ) -> Callable[[int, dict[str, float]], None]:
        """Tells Optuna the mean of the runs so far, the figure of this one counting as it is now."""

        def on_evaluation(step: int, figures: dict[str, float]) -> None:
            values = [each[self.task.monitor] for each in (*before, figures)]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a step that was told before the worker died
                trial.report(fmean(values), offset + step)
            if trial.should_prune():
                raise optuna.TrialPruned

        return on_evaluation


def _record(trial: FrozenTrial) -> Record:
    attributes = trial.user_attrs
    return Record(
        trial.number,
        STATES.get(trial.state, "running"),
        dict(trial.params),
        trial.value if trial.state == TrialState.COMPLETE else None,
        dict(trial.intermediate_values),
        attributes.get("runs", []),
        attributes.get("steps"),
        attributes.get("seconds"),
        attributes.get("error", ""),
    )


def _require_same(known: dict[str, Any], about: dict[str, Any], out: Path) -> None:
    """More trials, more workers and newer code may go on with a search; nothing else."""
    for name, value in about.items():
        if name != "code" and known.get(name) != value:
            if name == "storage":
                raise ValueError(f"the search in {out} keeps its records elsewhere: name the same --storage as before")
            raise ValueError(
                f"{out} holds another search: {name} was {known.get(name)} and is {value}; choose another --out"
            )
