"""One training run in a folder: setup, the loop, checkpoints and logs around it.

The best weights by ``monitor`` on held-out data are on disk as soon as they were evaluated.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor

from lookalike._util.progress import Display
from lookalike._util.signals import RunFailed, Stopped, StopRequest
from lookalike.data.pictures import Pictures, UnreadablePicture
from lookalike.objectives import Gathered, Loss
from lookalike.training.assembly import Assembly, assemble
from lookalike.training.ccp import Problem
from lookalike.training.learner import Learner
from lookalike.training.loop import evaluation_is_due, fit
from lookalike.training.measuring import Measuring
from lookalike.training.optim import EMA, LRSchedule, create_optimizer
from lookalike.training.problems import Samples, create_problems, row_of, sentence_of
from lookalike.training.record import Record
from lookalike.training.settings import Settings

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
    with StopRequest().listening() as stop:
        try:
            parts = assemble(settings, stop, pictures)
        except Stopped:
            Display(stop).say("stopped before the first step; the same command goes on, cached features are kept")
            raise
        return Run(parts, on_evaluation).go()


class Run:
    """A run that has been set up."""

    def __init__(self, parts: Assembly, on_evaluation: OnEvaluation | None = None) -> None:
        self.on_evaluation = on_evaluation
        self.parts, self.settings, self.fabric, self.display = parts, parts.settings, parts.fabric, parts.display
        settings = parts.settings
        learner = Learner(parts.model, Gathered(parts.objective)).to(self.fabric.device)
        self.mean = EMA(learner.model, settings.ema) if settings.ema else None
        self.learner, self.optimiser = self.fabric.setup(
            learner, create_optimizer(learner.model, learner.objective, settings)
        )
        self.rates = LRSchedule(self.optimiser, settings.schedule, settings.steps, settings.warm_up or 0)
        self.measuring, self.samples = Measuring(parts), Samples(parts)
        self.problems = create_problems(parts, learner.model, self.measuring)
        self.record = Record(parts, learner, self.optimiser, self.rates, self.problems, self.mean)
        self.progress = self.record.progress
        self.pooling_was_ready = parts.pooling_is_ready()
        self.baseline: dict[str, float] = {}  # of the last evaluation
        self.ended: Problem | None = None  # by the last evaluation
        self.bar = self.display.steps(settings.steps, self.progress.step)
        if parts.state is not None:
            self.display.say(f"going on after step {self.progress.step}")

    def go(self) -> dict[str, Any]:
        """Train to the end; return the content of ``figures.json``."""
        settings, record = self.settings, self.record
        go_on = f"go on with: lookalike train --out {self.parts.folder.path} --resume"
        try:
            if self.problems is not None and not self.problems.begun:
                self.problems.begin()
            result = fit(
                self.learner,
                self._batches(),
                self.optimiser,
                steps=settings.steps,
                seed=settings.seed,
                evaluate=self._evaluate,
                evaluate_every=settings.evaluate_every,
                monitor=settings.monitor,
                patience=settings.patience,
                lr_schedule=self.rates,
                accumulate=settings.accumulate,
                clip_norm=torch.inf if settings.clip_norm is None else settings.clip_norm,
                clip_value=settings.clip_value,
                fabric=self.fabric,
                before_update=None if self.problems is None else self.problems.add_pull,
                on_step=self._after_step,
                on_evaluation=self._after_evaluation,
                progress=self.progress,
            )
            record.last_row()
        except Stopped:
            record.save()
            record.last_row()
            self.display.say(f"stopped after step {self.progress.step} and saved; {go_on}")
            raise
        except (UnreadablePicture, OSError) as error:
            raise RunFailed(f"{error}\nthe last saved state is whole; {go_on}") from error
        finally:
            self.bar.close()
            record.log.close()
        return record.finish(result.ending)

    def _batches(self) -> Iterator[tuple[Tensor | None, ...]]:
        """Batches for the learner: inputs, labels, positions and the samples of the current CCP problem."""
        batches = self.parts.feed.training(self.progress.step * self.settings.accumulate)
        while True:
            samples = None if self.problems is None else self.samples.of(self.problems.number)
            yield (*next(batches), samples)

    def _after_step(self, step: int, loss: Loss) -> None:
        settings, record = self.settings, self.record
        values = {"loss": loss.value, **loss.parts}
        if settings.precision == "16-mixed":
            values.pop("gradient", None)  # the scaler skips a step that overflows
        record.log.add(values)
        if self.mean is not None:
            if self.pooling_was_ready:
                self.mean.update()
            else:
                self.mean.restart()
        self.pooling_was_ready = self.parts.pooling_is_ready()
        self.bar.update()
        if step % settings.log_every == 0:
            self.bar.set_postfix_str(record.row(), refresh=False)
        evaluation_saves = evaluation_is_due(step, settings.steps, settings.evaluate_every)
        if step % (settings.save_every or 1) == 0 and not evaluation_saves:
            record.save()
        self._stop_if_asked()

    def _evaluate(self) -> dict[str, float]:
        """Measure on held-out data. If this is interrupted, nothing has changed."""
        with self.record.log.paused():
            self.record.check_finite()
            with self.record.judged_weights():
                metrics, self.baseline = self.measuring.figures(with_baseline=self.progress.step == 0)
            self.ended = None
            if metrics and self.problems is not None:
                self.ended = self.problems.report(metrics[self.settings.monitor], self.optimiser.optimizer)
        return metrics

    def _after_evaluation(self, step: int, metrics: dict[str, float]) -> None:
        """Report and save; the model too if it is the best so far."""
        progress, settings, record = self.progress, self.settings, self.record
        is_best = progress.best_step == step
        with record.log.paused():
            if self.baseline:
                progress.baseline = self.baseline
                self.display.say(f"before: {_short(self.baseline)}  the backbone's own features, averaged")
            if metrics:
                record.values(metrics, "validation/")
                mark = "  the best so far" if is_best and step else ""
                self.display.say(f"step {step:>6}  {_short(metrics)}{mark}")
            if self.ended is not None:
                record.values(row_of(self.ended, settings), "problems/")
                self.display.say(sentence_of(self.ended, settings))
            try:  # before saving, so that the callback misses nothing if the run is killed in between
                if metrics and self.on_evaluation is not None:
                    self.on_evaluation(step, metrics)
            finally:
                record.save()
                if is_best:
                    record.save_model()
        if step < settings.steps:
            self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        """Raise ``Stopped`` if a signal came. All processes must stop after the same step, so they compare."""
        stop = self.display.stop
        if self.parts.world > 1:
            if self.progress.step % self.settings.log_every:
                return
            asked = torch.tensor(stop.requested, device=self.fabric.device)
            stop.requested = int(cast(Tensor, self.fabric.all_reduce(asked, reduce_op="max")))
        stop.check()


def _short(metrics: dict[str, float]) -> str:
    return "  ".join(f"{name} {100 * metrics[name]:.2f}" for name in ("MAP@R", "P@1"))
