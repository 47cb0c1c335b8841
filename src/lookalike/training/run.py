"""One training run in a folder: setup, the loop, checkpoints and logs around it.

The best weights by ``monitor`` on held-out data are on disk as soon as they were evaluated.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from lookalike._util.progress import Display
from lookalike._util.signals import RunFailed, Stopped, StopRequest
from lookalike.data.pictures import Pictures, UnreadablePicture
from lookalike.models import save_model
from lookalike.objectives import LIBC, Loss, ZeroShot
from lookalike.objectives.libc import save_messages
from lookalike.training.ccp import Problem, Samples, all_rows, as_row, as_sentence, create_problems
from lookalike.training.checkpoint import Checkpoint, RunFolder
from lookalike.training.evaluate import Evaluator
from lookalike.training.log import Log, in_short
from lookalike.training.loop import Progress, evaluation_is_due, fit
from lookalike.training.model import Learner
from lookalike.training.optim import EMA, LRSchedule, create_optimizer
from lookalike.training.restarts import Restarts
from lookalike.training.settings import Settings
from lookalike.training.setup import Setup, set_up

OnEvaluation = Callable[[int, dict[str, float]], None]


def train(
    settings: Settings, pictures: Pictures | None = None, *, on_evaluation: OnEvaluation | None = None
) -> dict[str, Any]:
    """Train a model and write the run to ``settings.out``.

    Args:
        settings: Settings of the run.
        pictures: Pictures to use instead of ``settings.data``. They are not checked again.
        on_evaluation: Called with the step and the metrics on held-out data. A step may come twice if the run is killed
            and resumed. An exception that it raises ends the run, with everything saved.

    Returns:
        The content of ``figures.json``.

    Raises:
        ValueError: For bad settings or data, before anything is written.
        Stopped: When asked to stop by a signal; the state is saved.
        RunFailed: When the run cannot continue.
    """
    if settings.out is None:
        raise ValueError("missing --out RUN (folder for the run)")
    started = time.monotonic()
    folder = RunFolder(Path(settings.out))
    with StopRequest().listening() as stop:
        try:
            setup = _set_up(settings, folder, stop, pictures)
            return Run(setup, on_evaluation, started=started).run()
        finally:
            folder.unlock()


def _set_up(settings: Settings, folder: RunFolder, stop: StopRequest, pictures: Pictures | None) -> Setup:
    try:
        return set_up(settings, folder, stop, pictures)
    except Stopped:
        Display(stop).say("stopped before the first step; the same command starts again, cached features are kept")
        raise


class Run:
    """A run that has been set up: one batch goes through ``_batches``, ``Learner``, ``loop.Stepper``, ``_after_step``.

    Args:
        setup: The run.
        on_evaluation: As in ``train``.
        started: When the work for this run began, as ``time.monotonic`` gives it; None: now.
    """

    def __init__(
        self, setup: Setup, on_evaluation: OnEvaluation | None = None, *, started: float | None = None
    ) -> None:
        self.setup, self.on_evaluation, self.started = setup, on_evaluation, started
        self.settings = settings = setup.settings
        self.fabric, self.display, self.folder = setup.fabric, setup.display, setup.folder
        learner = Learner(setup.model, setup.objective, setup.local_features).to(self.fabric.device)
        self.ema: EMA | None = None
        if settings.ema:
            self.ema = EMA(learner.model, settings.ema)
        optimizer = create_optimizer(learner.model, learner.objective, settings)
        # Several processes wait for each other's gradients, so there they are computed and dropped.
        self.can_skip_backbone = self.fabric.world_size == 1 and learner.trains_without_backbone()
        self.unwrapped = learner
        self.learner, self.optimizer = self.fabric.setup(learner, optimizer)
        self.lr_schedule = LRSchedule(
            self.optimizer,
            settings.schedule,
            settings.steps,
            settings.warm_up or 0,
            patience=settings.plateau_patience,
            min_delta=settings.min_delta,
            min_lr=settings.min_lr,
        )
        self.restarts: Restarts | None = None
        if settings.restarts:
            self.restarts = Restarts(learner, self.lr_schedule, settings.restarts, settings.restart_lr)
        self.evaluator = Evaluator(setup)
        self.problems = create_problems(setup, learner.model, self.evaluator.vectors, self._evaluated_weights)
        self.samples = Samples(setup)
        self.log = self._create_log()
        parts = {
            "learner": learner,
            "optimiser": self.optimizer,
            "rates": self.lr_schedule,
            "problems": self.problems,
            "mean": self.ema,
            "restarts": self.restarts,
        }
        self.checkpoint = Checkpoint(self.folder, parts, self.log, setup.fingerprints)
        self.progress = Progress()
        if setup.state is not None:
            self._restore(setup.state)
        self.pooling_was_ready = self._pooling_is_ready()
        self.baseline: dict[str, float] = {}  # of the last evaluation
        self.ended: Problem | None = None  # by the last evaluation
        self.bar = self.display.steps(settings.steps, self.progress.step)

    def run(self) -> dict[str, Any]:
        """Train to the end; return the content of ``figures.json``."""
        settings = self.settings
        hint = f"continue with: lookalike train --out {self.folder.path} --resume"
        before_update = None
        clip_norm = settings.clip_norm
        if clip_norm is None:
            clip_norm = torch.inf  # to log the norm
        try:
            if self.problems is not None:
                before_update = self.problems.add_pull
                if not self.problems.begun:
                    self.problems.begin()
            result = fit(
                self.learner,
                self._batches(),
                self.optimizer,
                steps=settings.steps,
                seed=settings.seed,
                evaluate=self._evaluate,
                evaluate_every=settings.evaluate_every,
                count_start=settings.count_start,
                monitor=settings.monitor,
                patience=settings.patience,
                lr_schedule=self.lr_schedule,
                accumulate=settings.accumulate,
                clip_norm=clip_norm,
                clip_value=settings.clip_value,
                fabric=self.fabric,
                before_step=self._before_step,
                before_update=before_update,
                on_step=self._after_step,
                on_evaluation=self._after_evaluation,
                progress=self.progress,
            )
            self._write_last_rows()
        except Stopped:
            self._save()
            self._write_last_rows()
            self.display.say(f"stopped after step {self.progress.step} and saved; {hint}")
            raise
        except (UnreadablePicture, OSError) as error:
            raise RunFailed(f"{error}\nthe last saved state is complete; {hint}") from error
        finally:
            self.bar.close()
            self.log.close()
        summary = self._write_summary(result.ending)
        self.fabric.barrier()  # a process that ends closes its connections, which the others may still need
        return summary

    def _batches(self) -> Iterator[tuple[Tensor | None, ...]]:
        """Batches for the learner: inputs, labels, positions and the samples of the current CCP problem."""
        batches = self.setup.feed.training(self.progress.step * self.settings.accumulate)
        while True:
            samples = None
            if self.problems is not None:
                samples = self.samples.of(self.problems.number)
            yield (*next(batches), samples)

    def _before_step(self, step: int) -> None:
        self.unwrapped.backbone_waits = self.can_skip_backbone and step < self.lr_schedule.warm_up
        self._restart_if_due(step)

    def _restart_if_due(self, step: int) -> None:
        """Return to the best weights after the steps in ``settings.restarts``."""
        scale = self.lr_schedule.scale
        if self.restarts is None or not self.restarts.before_step(step):
            return
        if self.ema is not None:
            self.ema.restart()
        rate = self._pace()["rate"] * self.lr_schedule.scale / scale
        self.display.say(f"step {step:>6}  back to the weights of step {self.progress.best_step}, rate {rate:.2g}")

    def _after_step(self, step: int, loss: Loss) -> None:
        """Log, average the weights, save, and stop if asked."""
        settings = self.settings
        values = {"loss": loss.value, **loss.parts}
        if settings.precision == "16-mixed":
            values.pop("gradient", None)  # may be infinite: the scaler skips such a step
        self.log.add(values)
        if self.ema is not None:
            if self.pooling_was_ready:
                self.ema.update()
            else:
                self.ema.restart()  # the prototypes may just have been replaced
        self.pooling_was_ready = self._pooling_is_ready()
        self.bar.update()
        if step % settings.log_every == 0:
            self._check_finite()
            row = self.log.close_row(step, **self._pace())
            self.bar.set_postfix_str(in_short(row), refresh=False)
        evaluation_saves = evaluation_is_due(step, settings.steps, settings.evaluate_every)
        if step % (settings.save_every or 1) == 0 and not evaluation_saves:
            self._save()
        self._stop_if_asked()

    def _evaluate(self) -> dict[str, float]:
        """Evaluate on held-out pictures. If this is interrupted, nothing has changed."""
        with self.log.paused():
            self._check_finite()
            with self._evaluated_weights():
                metrics, self.baseline = self.evaluator.metrics(with_baseline=self.progress.step == 0)
            self.ended = None
            counts = self.settings.count_start or self.progress.step > 0
            if metrics and counts and self.problems is not None:
                self.ended = self.problems.report(metrics[self.settings.monitor], self.optimizer.optimizer)
        return metrics

    def _after_evaluation(self, step: int, metrics: dict[str, float]) -> None:
        """Print, log and save; the model too if it is the best so far."""
        is_best = self.progress.best_step == step
        with self.log.paused():
            if self.baseline:
                self.progress.baseline = self.baseline
                self.display.say(f"before: {_in_percent(self.baseline)}  averaged features of the backbone")
            if metrics:
                self.log.record(step, metrics, "validation/")
                mark = "  best so far" if is_best and step else ""
                self.display.say(f"step {step:>6}  {_in_percent(metrics)}{mark}")
            if self.ended is not None and self.problems is not None:
                row = as_row(self.ended, self.settings)
                self.problems.ended.append(row)
                self.log.record(step, row, "problems/")
                self.display.say(as_sentence(self.ended, self.settings))
            if is_best and self.restarts is not None:
                with self._evaluated_weights():
                    self.restarts.keep()
            try:  # before saving, so that the callback misses nothing if the run is killed in between
                if metrics and self.on_evaluation is not None:
                    self.on_evaluation(step, metrics)
            finally:
                self._save()
                if is_best:
                    self._save_model()
        if step < self.settings.steps:
            self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        """Raise ``Stopped`` if a signal came. All processes must stop after the same step, so they compare."""
        stop = self.display.stop
        if self.fabric.world_size > 1:
            if self.progress.step % self.settings.log_every:
                return
            asked = torch.tensor(stop.requested, device=self.fabric.device)
            stop.requested = int(cast(Tensor, self.fabric.all_reduce(asked, reduce_op="max")))
        stop.check()

    def _pooling_is_ready(self) -> bool:
        """False while prototypes wait for their start from data."""
        return getattr(self.setup.embedder.head.pooling, "ready", True)

    def _evaluated_weights(self) -> AbstractContextManager[None]:
        """Context in which the model has the weights that are evaluated and saved: the EMA if there is one."""
        if self.ema is None:
            return nullcontext()
        return self.ema.in_place()

    def _create_log(self) -> Log:
        writer = None
        if self.setup.is_first:
            from torch.utils.tensorboard import SummaryWriter

            first_step = 0
            if self.setup.state is not None:
                first_step = int(self.setup.state["progress"]["step"]) + 1  # events of the saved step were written
            writer = SummaryWriter(str(self.folder.path), purge_step=first_step)
        return Log(writer, self.settings.batch_size * self.settings.accumulate, self.started)

    def _pace(self) -> dict[str, float]:
        """Epoch and learning rate of the head, for a row of the log."""
        sampler = self.setup.feed.sampler
        epoch, step = sampler.locate(self.progress.step * self.settings.accumulate)
        rates = {}
        for group in self.optimizer.param_groups:
            rates[group["name"].split(",")[0]] = group["lr"]
        return {
            "epoch": round(epoch + step / sampler.steps_per_epoch(epoch), 2),
            "rate": rates.get("head", max(rates.values())),
        }

    def _check_finite(self) -> None:
        """Raise ``RunFailed`` if loss or gradient are not finite, before anything is saved."""
        name = self.log.not_finite()
        if name is not None:
            raise RunFailed(
                f"the {name} is not finite any more around step {self.progress.step}: try a lower --lr or --clip-norm. "
                f"The best weights and the last good state are still in {self.folder.path}"
            )

    def _restore(self, state: dict[str, Any]) -> None:
        self.checkpoint.restore(state, self.fabric.device)
        self.progress = Progress(**state["progress"])
        if self.progress.best_step == self.progress.step == self.progress.evaluated:
            if self.setup.validation is not None:
                with self._evaluated_weights():
                    self.evaluator.metrics()  # for the calibration
            self._save_model()  # the run may have been killed between saving the state and the model
        self.display.say(f"continuing after step {self.progress.step}")

    def _save(self) -> None:
        self._check_finite()
        self.progress.seconds = self.log.seconds
        if self.setup.is_first:
            self.checkpoint.save(self.progress)

    def _save_model(self) -> None:
        if self.setup.is_first:
            with self._evaluated_weights():
                save_model(self.setup.embedder, self.folder.path)
            for module in self.setup.objective.modules():
                if isinstance(module, LIBC):  # for evaluation with message passing
                    save_messages(module.messages, self.folder.path)
            calibration = self.evaluator.calibration()
            if calibration is not None:
                calibration.write(self.folder.path)

    def _write_last_rows(self) -> None:
        if self.setup.is_first:
            self.folder.write_metrics(self.log.rows_with_rest(self.progress.step, **self._pace()))

    def _write_summary(self, ending: str) -> dict[str, Any]:
        summary: dict[str, Any] = {
            "ending": ending,
            "steps": self.progress.step,
            "best_step": self.progress.best_step,
            "seconds": round(self.log.seconds, 1),
            "monitor": self.settings.monitor,
            "backbone": self.progress.baseline,
            "start": self.progress.start,
            "best": self.progress.best,
        }
        for module in self.setup.objective.modules():
            if isinstance(module, ZeroShot):
                summary["zero_shot_skipped"] = module.skipped_share  # share of batches with a single class
        if self.problems is not None:
            summary["problems"] = all_rows(self.problems)
        if self.setup.is_first:
            self.folder.write_json("figures.json", summary)
        return summary


def _in_percent(metrics: dict[str, float]) -> str:
    return "  ".join(f"{name} {100 * metrics[name]:.2f}" for name in ("MAP@R", "P@1"))
