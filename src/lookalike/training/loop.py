"""One model, one run: the whole loop, top to bottom, in one process or many.

Whatever is random in step s comes from (seed, s, rank), so a resumed run takes the very steps it would have taken.
Weights are judged by ``monitor`` on what is held out, and the best are on disk from the moment they were seen.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from math import isnan
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.tensorboard import SummaryWriter

from lookalike.data.pictures import Pictures, UnreadablePicture
from lookalike.models import save_model
from lookalike.objectives import Gathered, Loss, ZeroShot
from lookalike.training.assembly import Assembly, assemble
from lookalike.training.ccp import ProxyProblems
from lookalike.training.display import Display
from lookalike.training.evaluation import distance_for, embed, join_shares, measure
from lookalike.training.feeds import Batch
from lookalike.training.log import Log
from lookalike.training.mean_weights import MeanWeights
from lookalike.training.optimiser import create_optimiser
from lookalike.training.rates import Rates
from lookalike.training.settings import Settings
from lookalike.training.stopping import RunFailed, Stopped, StopRequest


@dataclass
class Progress:
    """How far a run came: all of its state that is not a tensor."""

    step: int = 0
    evaluated: int = -1  # the last step that was measured
    best_step: int = 0
    waited: int = 0  # evaluations since the best
    seconds: float = 0.0
    baseline: dict[str, float] = field(default_factory=dict)  # the backbone's own features, averaged
    start: dict[str, float] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)


class Learner(nn.Module):
    """Model and loss as one module, so that DDP takes care of the gradients of both."""

    def __init__(self, model: nn.Module, objective: Gathered) -> None:
        super().__init__()
        self.model, self.objective = model, objective

    def forward(self, inputs: Tensor, labels: Tensor, pictures: Tensor) -> Loss:
        if not self.objective.objective.needs_attributes:
            return self.objective(self.model(inputs), labels, None, pictures)
        pooled = self.model(inputs, details=True)
        return self.objective(pooled.vector, labels, pooled.attributes, pictures)


def train(settings: Settings) -> dict[str, Any]:
    """Train, and leave the run in ``settings.out``. Returns what ``figures.json`` holds.

    Raises ValueError for bad settings or data before anything is written, ``Stopped`` when asked to stop (the state is
    saved by then), and ``RunFailed`` when the run cannot go on.
    """
    with StopRequest().listening() as stop:
        try:
            parts = assemble(settings, stop)
        except Stopped:
            Display(stop).say("stopped before the first step; the same command goes on, cached features are kept")
            raise
        return Run(parts).go()


class Run:
    def __init__(self, parts: Assembly) -> None:
        self.parts, self.settings, self.fabric = parts, parts.settings, parts.fabric
        self.display, self.folder = parts.display, parts.folder
        settings = parts.settings
        learner = Learner(parts.model, Gathered(parts.objective)).to(self.fabric.device)
        self.mean = MeanWeights(learner.model, settings.ema) if settings.ema else None
        self.learner, self.optimiser = self.fabric.setup(
            learner, create_optimiser(learner.model, learner.objective, settings)
        )
        self.rates = Rates(self.optimiser, settings.schedule, settings.steps, settings.warm_up or 0)
        self.problems = self._proxy_problems(learner) if settings.ccp else None
        self.progress = Progress()
        self.started = time.monotonic()
        self.log = Log(SummaryWriter(str(self.folder.path), purge_step=parts.steps_done) if parts.first else None)
        if parts.state is not None:
            self._restore(parts.state)

    def go(self) -> dict[str, Any]:
        settings, progress = self.settings, self.progress
        ending = "all steps are done"
        bar = self.display.steps(settings.steps, progress.step)
        batches = self.parts.feed.training(progress.step * settings.accumulate)
        self.learner.train()
        try:
            if self.problems is not None and not self.problems.begun:
                self.problems.begin()
            while True:
                if self._evaluation_is_due():
                    with self.log.paused():
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
                    bar.set_postfix_str(self._log_row(), refresh=False)
                if progress.step % (settings.save_every or 1) == 0 and not self._evaluation_is_due():
                    self._save()
        except Stopped:
            self._save()
            self.display.say(f"stopped after step {progress.step} and saved; {self._how_to_go_on()}")
            raise
        except (UnreadablePicture, OSError) as error:
            raise RunFailed(f"{error}\nthe last saved state is whole; {self._how_to_go_on()}") from error
        finally:
            bar.close()
            self.log.close()
        return self._finish(ending)

    def _step(self, batches: Iterator[Batch]) -> None:
        """One step of the optimiser, over ``accumulate`` batches."""
        settings, step = self.settings, self.progress.step
        torch.manual_seed(_mix(settings.seed, step, self.parts.rank))
        self.rates.set_for(step)
        for turn in range(settings.accumulate):
            inputs, labels, pictures = self.fabric.to_device(next(batches))
            last = turn == settings.accumulate - 1
            with self.fabric.no_backward_sync(self.learner, enabled=not last):
                loss = self.learner(inputs, labels, pictures)
                self.fabric.backward(loss.value / settings.accumulate)
            self.log.add({"loss": loss.value.detach(), **loss.parts})
        if settings.clip_value is not None:
            self.fabric.clip_gradients(self.learner, self.optimiser, clip_val=settings.clip_value)
        longest = settings.clip_norm if settings.clip_norm is not None else torch.inf
        norm = self.fabric.clip_gradients(self.learner, self.optimiser, max_norm=longest, error_if_nonfinite=False)
        if norm is not None and settings.precision != "16-mixed":  # there the scaler skips a step that overflows
            self.log.add({"gradient": norm.detach()})
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
        """Measure, and keep the weights if they are the best so far."""
        progress, settings = self.progress, self.settings
        self._check_finite()
        with self._judged_weights():
            figures = self._measure() if self.parts.validation is not None else {}
        better = not figures or not progress.best or figures[settings.monitor] > progress.best[settings.monitor]
        progress.evaluated = progress.step
        progress.start = progress.start or figures
        progress.waited = 0 if better else progress.waited + 1
        if better:
            progress.best, progress.best_step = figures, progress.step
        if figures:
            self.rates.report(figures[settings.monitor])
            self.log.record(progress.step, self._seconds(), figures, "validation/")
            mark = "  the best so far" if better and progress.step else ""
            self.display.say(f"step {progress.step:>6}  {_short(figures)}{mark}")
            if self.problems is not None:
                self._report_to_problems(figures[settings.monitor])
        self._save()
        if better:
            self._save_model()

    def _proxy_problems(self, learner: Learner) -> ProxyProblems:
        settings, train = self.settings, self.parts.train

        def vectors(places: NDArray[np.int64]) -> Tensor:
            self.learner.eval()
            found, pictures = np.unique(places, return_inverse=True)
            embedded = self._embed(train.take(found), False)[0][torch.from_numpy(pictures)]
            self.learner.train()
            return embedded

        objective = self.parts.proxies
        assert objective is not None
        return ProxyProblems(
            learner.model,
            objective,
            train.labels,
            vectors,
            pool=settings.ccp_pool,
            pull=settings.ccp_pull,
            patience=settings.ccp_patience,
            select=settings.ccp_select,
            alternate=settings.ccp_alternate,
            seed=settings.seed,
        )

    def _report_to_problems(self, figure: float) -> None:
        assert self.problems is not None
        ended = self.problems.report(figure)
        if ended is None:
            return
        for value in self.optimiser.optimizer.state.get(self.problems.objective.proxies, {}).values():
            if isinstance(value, Tensor):
                value.zero_()  # the new proxies owe nothing to the old ones' momentum
        steps = ended.evaluations * self.settings.evaluate_every
        row = {"problem": ended.number, "problem steps": steps, "problem best": ended.best}
        row |= {"radius before": ended.radius_before, "radius after": ended.radius_after}
        row |= {} if isnan(ended.moved) else {"moved": ended.moved}
        self.log.record(self.progress.step, self._seconds(), row, "problems/")
        self.display.say(
            f"problem {ended.number} is solved: {steps} steps, {self.settings.monitor} {100 * ended.best:.2f}, "
            f"covering radius {ended.radius_before:.3f} -> {ended.radius_after:.3f}, weights moved by {ended.moved:.2%}"
        )

    def _judged_weights(self) -> AbstractContextManager[None]:
        """The weights that are measured and kept: the mean where there is one, else those that are trained."""
        return self.mean.in_place() if self.mean is not None else nullcontext()

    def _measure(self) -> dict[str, float]:
        validation = self.parts.validation
        assert validation is not None
        with_average = self.progress.step == 0
        self.learner.eval()
        vectors = self._embed(validation, with_average)
        self.learner.train()
        figures: dict[str, float] = {}
        if self.parts.first:
            figures = measure(vectors[0], validation, distance=distance_for(self.parts.embedder.head.normalise))
            if with_average:
                self.progress.baseline = measure(vectors[1], validation)
                self.display.say(f"before: {_short(self.progress.baseline)}  the backbone's own features, averaged")
        return self.fabric.broadcast(figures)

    def _embed(self, pictures: Pictures, with_average: bool) -> tuple[Tensor, ...]:
        """The vectors of all pictures, and where asked their mean local features."""
        embedder, rank, world = self.parts.embedder, self.parts.rank, self.parts.world

        def forward(inputs: Tensor) -> tuple[Tensor, ...]:
            with self.fabric.autocast():
                tokens = inputs if self.settings.freeze_backbone else embedder.backbone(inputs)
                vectors = embedder.head(tokens)
            return (vectors, tokens.float().mean(1)) if with_average else (vectors,)

        with self.display.bar(-(-len(pictures) // world), "measuring") as tick:
            batches = self.parts.feed.evaluation(pictures, rank, world)
            own = embed(batches, forward, device=self.fabric.device, tick=tick)
        if world == 1:
            return own
        most = -(-len(pictures) // world)
        padded = [nn.functional.pad(part, (0, 0, 0, most - len(part))).to(self.fabric.device) for part in own]
        return tuple(join_shares(cast(Tensor, self.fabric.all_gather(part)), len(pictures)).cpu() for part in padded)

    def _stop_if_asked(self) -> None:
        """Many processes must stop after the same step, so they ask each other, now and then."""
        stop = self.display.stop
        if self.parts.world > 1:
            if self.progress.step % self.settings.log_every:
                return
            asked = torch.tensor(stop.requested, device=self.fabric.device)
            stop.requested = int(cast(Tensor, self.fabric.all_reduce(asked, reduce_op="max")))
        stop.check()

    def _log_row(self) -> str:
        """A row for metrics.csv, and the same in short for the bar."""
        self._check_finite()
        rates = {group["name"].split(",")[0]: group["lr"] for group in self.optimiser.param_groups}
        rate = rates.get("head", max(rates.values()))
        epoch = round(self.parts.epochs(self.progress.step), 2)
        row = self.log.row(self.progress.step, self._seconds(), self.settings.batch_size, epoch=epoch, rate=rate)
        parts = "".join(f", {name} {row[name]:.3f}" for name in ("metric", "zero-shot", "centres") if name in row)
        return f"loss {row['loss']:.4f}{parts}, rate {rate:.1e}, {row['pictures/s']:.0f} pictures/s"

    def _check_finite(self) -> None:
        """Nothing is saved after a loss or gradient that is not a number."""
        broken = self.log.broken()
        if broken is not None:
            raise RunFailed(
                f"the {broken} is not finite any more around step {self.progress.step}: a lower --lr or --clip-norm "
                f"may help. The best weights and the last good state are as they were in {self.folder.path}"
            )

    def _save(self) -> None:
        self._check_finite()
        self.progress.seconds, self.started = self._seconds(), time.monotonic()
        if not self.parts.first:
            return
        state = {
            "data": self.parts.fingerprints,
            "progress": asdict(self.progress),
            "learner": self.learner.module.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "rates": self.rates.state_dict(),
            "problems": self.problems.state_dict() if self.problems is not None else None,
            "mean": self.mean.state_dict() if self.mean is not None else None,
            "log": self.log.state_dict(),
        }
        self.folder.write_state(state)
        self.folder.write_metrics(self.log.rows)

    def _save_model(self) -> None:
        if self.parts.first:
            with self._judged_weights():
                save_model(self.parts.embedder, self.folder.path)

    def _restore(self, state: dict[str, Any]) -> None:
        self.progress = Progress(**state["progress"])
        self.learner.module.load_state_dict(state["learner"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.rates.load_state_dict(state["rates"])
        if self.mean is not None:
            self.mean.load_state_dict(state["mean"])
        if self.problems is not None:
            self.problems.load_state_dict(state["problems"])
        self.log.load_state_dict(state["log"], self.fabric.device)
        self.display.say(f"going on after step {self.progress.step}")
        if self.progress.best_step == self.progress.step == self.progress.evaluated:
            self._save_model()  # it may have been broken off just before this

    def _finish(self, ending: str) -> dict[str, Any]:
        progress = self.progress
        figures = {
            "ending": ending,
            "steps": progress.step,
            "best_step": progress.best_step,
            "seconds": round(self._seconds(), 1),
            "monitor": self.settings.monitor,
            "backbone": progress.baseline,
            "start": progress.start,
            "best": progress.best,
        }
        for part in self.parts.objective.modules():
            if isinstance(part, ZeroShot):
                figures["zero_shot_skipped"] = part.skipped_share  # batches of a single class
        if self.parts.first:
            self.folder.write_json("figures.json", figures)
        return figures

    def _seconds(self) -> float:
        return self.progress.seconds + time.monotonic() - self.started

    def _how_to_go_on(self) -> str:
        return f"go on with: lookalike train --out {self.folder.path} --resume"


def _mix(*numbers: int) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


def _short(figures: dict[str, float]) -> str:
    return "  ".join(f"{name} {100 * figures[name]:.2f}" for name in ("MAP@R", "P@1"))
