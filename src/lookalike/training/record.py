"""What a run writes down and goes on from: how far it came, its rows, its state, its best model, its summary."""

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.tensorboard import SummaryWriter

from lookalike._util.signals import RunFailed
from lookalike.models import save_model
from lookalike.objectives import ZeroShot
from lookalike.training.assembly import Assembly
from lookalike.training.ccp import ProxyProblems
from lookalike.training.log import Log
from lookalike.training.loop import Progress
from lookalike.training.optim import EMA, LRSchedule


class Record:
    """learner, optimiser, rates, problems, mean: all that has a state; the last two where the run has them."""

    def __init__(
        self,
        parts: Assembly,
        learner: nn.Module,
        optimiser: Optimizer,
        rates: LRSchedule,
        problems: ProxyProblems | None,
        mean: EMA | None,
    ) -> None:
        self.parts, self.settings, self.folder = parts, parts.settings, parts.folder
        self.learner, self.optimiser, self.mean = learner, optimiser, mean
        self.stateful: dict[str, Any] = {"learner": learner, "optimiser": optimiser, "rates": rates}
        self.stateful |= {"problems": problems, "mean": mean}
        purge = 0 if parts.state is None else parts.steps_done + 1  # rows of the step that was saved were written
        self.log = Log(SummaryWriter(str(self.folder.path), purge_step=purge) if parts.first else None)
        self.progress, self.started = Progress(), time.monotonic()
        if parts.state is not None:
            self._restore(parts.state)

    @property
    def seconds(self) -> float:
        return self.progress.seconds + time.monotonic() - self.started

    def judged_weights(self) -> AbstractContextManager[None]:
        """The weights that are measured and kept: the mean where there is one, else those that are trained."""
        return self.mean.in_place() if self.mean is not None else nullcontext()

    @property
    def _pictures_per_step(self) -> int:
        return self.settings.batch_size * self.settings.accumulate

    def values(self, values: dict[str, Any], prefix: str) -> None:
        self.log.record(self.progress.step, self.seconds, values, prefix)

    def row(self) -> str:
        """A row for metrics.csv, and the same in short for the bar."""
        self.check_finite()
        row = self.log.row(self.progress.step, self.seconds, self._pictures_per_step, **self._pace())
        parts = "".join(f", {name} {row[name]:.3f}" for name in ("metric", "zero-shot", "centres") if name in row)
        return f"loss {row['loss']:.4f}{parts}, rate {row['rate']:.1e}, {row['pictures/s']:.0f} pictures/s"

    def last_row(self) -> None:
        """What came after the last row of metrics.csv, which may be all that there is."""
        rows = self.log.rows_so_far(self.progress.step, self.seconds, self._pictures_per_step, **self._pace())
        if self.parts.first:
            self.folder.write_metrics(rows)

    def check_finite(self) -> None:
        """Nothing is saved after a loss or gradient that is not a number."""
        broken = self.log.broken()
        if broken is not None:
            raise RunFailed(
                f"the {broken} is not finite any more around step {self.progress.step}: a lower --lr or --clip-norm "
                f"may help. The best weights and the last good state are as they were in {self.folder.path}"
            )

    def save(self) -> None:
        self.check_finite()
        self.progress.seconds, self.started = self.seconds, time.monotonic()
        if self.parts.first:
            parts = {name: None if part is None else part.state_dict() for name, part in self.stateful.items()}
            state = {"data": self.parts.fingerprints, "progress": asdict(self.progress), **parts}
            self.folder.write_state({**state, "log": self.log.state_dict()})
            self.folder.write_metrics(self.log.rows)

    def save_model(self) -> None:
        if self.parts.first:
            with self.judged_weights():
                save_model(self.parts.embedder, self.folder.path)

    def finish(self, ending: str) -> dict[str, Any]:
        """The summary."""
        progress = self.progress
        figures = {
            "ending": ending,
            "steps": progress.step,
            "best_step": progress.best_step,
            "seconds": round(self.seconds, 1),
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

    def _pace(self) -> dict[str, float]:
        rates = {group["name"].split(",")[0]: group["lr"] for group in self.optimiser.param_groups}
        epoch = round(self.parts.epochs(self.progress.step), 2)
        return {"epoch": epoch, "rate": rates.get("head", max(rates.values()))}

    def _restore(self, state: dict[str, Any]) -> None:
        for name, part in self.stateful.items():
            if part is not None:
                part.load_state_dict(state[name])
        self.log.load_state_dict(state["log"], self.parts.fabric.device)
        self.progress = Progress(**state["progress"])
        if self.progress.best_step == self.progress.step == self.progress.evaluated:
            self.save_model()  # it may have been broken off just before this
