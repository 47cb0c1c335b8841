"""One model, one run: the whole loop, top to bottom, in one process or many.

Whatever is random in step s comes from (seed, s, rank), so a resumed run takes the very steps it would have taken.
Weights are judged by ``monitor`` on what is held out, and the best are on disk from the moment they were seen.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from lookalike._util.progress import Display
from lookalike._util.signals import RunFailed, Stopped, StopRequest
from lookalike.data.pictures import Pictures, UnreadablePicture
from lookalike.objectives import Gathered
from lookalike.training.assembly import Assembly, assemble
from lookalike.training.feeds import Batch
from lookalike.training.learner import Learner
from lookalike.training.mean_weights import MeanWeights
from lookalike.training.measuring import Measuring
from lookalike.training.optimiser import create_optimiser
from lookalike.training.problems import Samples, create_problems, row_of, sentence_of
from lookalike.training.rates import Rates
from lookalike.training.record import Record
from lookalike.training.settings import Settings

OnEvaluation = Callable[[int, dict[str, float]], None]


def train(
    settings: Settings, pictures: Pictures | None = None, *, on_evaluation: OnEvaluation | None = None
) -> dict[str, Any]:
    """Train, and leave the run in ``settings.out``. Returns what ``figures.json`` holds.

    ``pictures`` take the place of those that ``settings.data`` names; they have been checked, if at all.
    ``on_evaluation`` is told the step and the figures on what is held out, a step perhaps twice if the run is killed
    and resumed; what it raises ends the run there, with all saved, and comes through.

    Raises ValueError for bad settings or data before anything is written, ``Stopped`` when asked to stop (the state is
    saved by then), and ``RunFailed`` when the run cannot go on.
    """
    with StopRequest().listening() as stop:
        try:
            parts = assemble(settings, stop, pictures)
        except Stopped:
            Display(stop).say("stopped before the first step; the same command goes on, cached features are kept")
            raise
        return Run(parts, on_evaluation).go()


class Run:
    def __init__(self, parts: Assembly, on_evaluation: OnEvaluation | None = None) -> None:
        self.on_evaluation = on_evaluation
        self.parts, self.settings, self.fabric, self.display = parts, parts.settings, parts.fabric, parts.display
        settings = parts.settings
        learner = Learner(parts.model, Gathered(parts.objective)).to(self.fabric.device)
        self.mean = MeanWeights(learner.model, settings.ema) if settings.ema else None
        self.learner, self.optimiser = self.fabric.setup(
            learner, create_optimiser(learner.model, learner.objective, settings)
        )
        self.rates = Rates(self.optimiser, settings.schedule, settings.steps, settings.warm_up or 0)
        self.measuring, self.samples = Measuring(parts), Samples(parts)
        self.problems = create_problems(parts, learner.model, self.measuring)
        self.record = Record(parts, learner, self.optimiser, self.rates, self.problems, self.mean)
        self.progress = self.record.progress
        if parts.state is not None:
            self.display.say(f"going on after step {self.progress.step}")

    def go(self) -> dict[str, Any]:
        settings, progress, record = self.settings, self.progress, self.record
        ending, go_on = "all steps are done", f"go on with: lookalike train --out {self.parts.folder.path} --resume"
        bar = self.display.steps(settings.steps, progress.step)
        batches = self.parts.feed.training(progress.step * settings.accumulate)
        self.learner.train()
        try:
            if self.problems is not None and not self.problems.begun:
                self.problems.begin()
            while True:
                if self._evaluation_is_due():
                    with record.log.paused():
                        self._evaluate()
                if progress.step >= settings.steps:
                    break
                if settings.patience is not None and progress.waited >= settings.patience:
                    ending = f"no better {settings.monitor} in {settings.patience} evaluations"
                    break
                self._stop_if_asked()
                self._step(batches)
                bar.update()
                if progress.step % settings.log_every == 0:
                    bar.set_postfix_str(record.row(), refresh=False)
                if progress.step % (settings.save_every or 1) == 0 and not self._evaluation_is_due():
                    record.save()
            record.last_row()
        except Stopped:
            record.save()
            record.last_row()
            self.display.say(f"stopped after step {progress.step} and saved; {go_on}")
            raise
        except (UnreadablePicture, OSError) as error:
            raise RunFailed(f"{error}\nthe last saved state is whole; {go_on}") from error
        finally:
            bar.close()
            record.log.close()
        return record.finish(ending)

    def _step(self, batches: Iterator[Batch]) -> None:
        """One step of the optimiser, over ``accumulate`` batches."""
        settings, step, log = self.settings, self.progress.step, self.record.log
        torch.manual_seed(_mix(settings.seed, step, self.parts.rank))
        self.rates.set_for(step)
        samples = None if self.problems is None else self.samples.of(self.problems.number)
        for turn in range(settings.accumulate):
            inputs, labels, pictures = self.fabric.to_device(next(batches))
            last = turn == settings.accumulate - 1
            with self.fabric.no_backward_sync(self.learner, enabled=not last):
                loss = self.learner(inputs, labels, pictures, samples)
                self.fabric.backward(loss.value / settings.accumulate)
            log.add({"loss": loss.value.detach(), **loss.parts})
        if settings.clip_value is not None:
            self.fabric.clip_gradients(self.learner, self.optimiser, clip_val=settings.clip_value)
        longest = settings.clip_norm if settings.clip_norm is not None else torch.inf
        norm = self.fabric.clip_gradients(self.learner, self.optimiser, max_norm=longest, error_if_nonfinite=False)
        if norm is not None and settings.precision != "16-mixed":  # there the scaler skips a step that overflows
            log.add({"gradient": norm.detach()})
        if self.problems is not None:
            self.problems.add_pull()
        was_ready = self.parts.pooling_is_ready()
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.progress.step += 1
        if self.mean is not None:
            self.mean.update() if was_ready else self.mean.restart()

    def _evaluation_is_due(self) -> bool:
        step = self.progress.step
        on_time = step % self.settings.evaluate_every == 0 or step >= self.settings.steps
        return on_time and step != self.progress.evaluated

    def _evaluate(self) -> None:
        """Measure, and keep the weights if they are the best so far. Whoever stops this stops it before it counts."""
        progress, settings, record = self.progress, self.settings, self.record
        record.check_finite()
        with record.judged_weights():
            figures, baseline = self.measuring.figures(with_baseline=progress.step == 0)
        ended = None
        if figures and self.problems is not None:
            ended = self.problems.report(figures[settings.monitor], self.optimiser.optimizer)
        better = not figures or not progress.best or figures[settings.monitor] > progress.best[settings.monitor]
        progress.evaluated = progress.step
        progress.start, progress.baseline = progress.start or figures, progress.baseline or baseline
        progress.waited = 0 if better else progress.waited + 1
        if better:
            progress.best, progress.best_step = figures, progress.step
        if baseline:
            self.display.say(f"before: {_short(baseline)}  the backbone's own features, averaged")
        if figures:
            self.rates.report(figures[settings.monitor])
            record.values(figures, "validation/")
            mark = "  the best so far" if better and progress.step else ""
            self.display.say(f"step {progress.step:>6}  {_short(figures)}{mark}")
        if ended is not None:
            record.values(row_of(ended, settings), "problems/")
            self.display.say(sentence_of(ended, settings))
        try:  # before it is saved, so that whoever listens misses nothing when the run is killed in between
            if figures and self.on_evaluation is not None:
                self.on_evaluation(progress.step, figures)
        finally:
            record.save()
            if better:
                record.save_model()

    def _stop_if_asked(self) -> None:
        """Many processes must stop after the same step, so they ask each other, now and then."""
        stop = self.display.stop
        if self.parts.world > 1:
            if self.progress.step % self.settings.log_every:
                return
            asked = torch.tensor(stop.requested, device=self.fabric.device)
            stop.requested = int(cast(Tensor, self.fabric.all_reduce(asked, reduce_op="max")))
        stop.check()


def _mix(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def _short(figures: dict[str, float]) -> str:
    return "  ".join(f"{name} {100 * figures[name]:.2f}" for name in ("MAP@R", "P@1"))
