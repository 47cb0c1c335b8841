"""The training loop: optimizer steps, evaluations on held-out data, early stopping.

``lookalike.training.train`` runs it inside a run folder. ``fit`` runs it in memory, with any model:

    embedder, objective = ...
    optimizer = torch.optim.Adam(embedder.parameters(), lr=1e-3)
    result = fit(learner, batches, optimizer, steps=500, evaluate=metrics, evaluate_every=50, restore_best=embedder)

All randomness of step s depends on (seed, s, rank) only, so a resumed run repeats the steps it would have taken.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from lookalike._util.signals import RunFailed
from lookalike.data.loading import mix_seeds
from lookalike.models.backbone import in_eval_mode
from lookalike.objectives import Loss
from lookalike.training.optim import LRSchedule

if TYPE_CHECKING:
    from lightning_fabric import Fabric

ALL_STEPS_DONE = "all steps are done"
Metrics = dict[str, float]


@dataclass
class Progress:
    """State of the loop that is not a tensor; ``fit`` continues from it and updates it in place."""

    step: int = 0
    evaluated: int = -1  # last evaluated step
    best_step: int = 0
    waited: int = 0  # evaluations since the best one
    seconds: float = 0.0
    baseline: Metrics = field(default_factory=dict)  # of the backbone's averaged features
    start: Metrics = field(default_factory=dict)  # first evaluation
    best: Metrics = field(default_factory=dict)
    interval: list[Tensor] = field(default_factory=list)  # losses since the last evaluation


@dataclass(frozen=True)
class FitResult:
    """Outcome of ``fit``.

    Attributes:
        evaluations: (step, metrics) of every evaluation, in order.
        losses: Mean training loss of each interval between evaluations, in order.
        best: Metrics of the best evaluation; empty if nothing was evaluated.
        best_step: Step of the best evaluation; the last step if nothing was evaluated.
        steps: Number of steps that were done.
        ending: Why training ended, as a sentence.
    """

    evaluations: list[tuple[int, Metrics]]
    losses: list[float]
    best: Metrics
    best_step: int
    steps: int
    ending: str


def fit(
    learner: nn.Module,
    batches: Iterator[Sequence[Any]],
    optimizer: Optimizer,
    *,
    steps: int,
    seed: int = 0,
    evaluate: Callable[[], Metrics] | None = None,
    evaluate_every: int | None = None,
    evaluate_start: bool = True,
    count_start: bool = True,
    monitor: str = "MAP@R",
    patience: int | None = None,
    restore_best: nn.Module | None = None,
    lr_schedule: LRScheduler | LRSchedule | None = None,
    accumulate: int = 1,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    fabric: "Fabric | None" = None,
    before_step: Callable[[int], None] | None = None,
    before_update: Callable[[], None] | None = None,
    on_step: Callable[[int, Loss], None] | None = None,
    on_evaluation: Callable[[int, Metrics], None] | None = None,
    progress: Progress | None = None,
) -> FitResult:
    """Train until all steps are done or evaluations stop improving.

    Args:
        learner: Called as ``learner(*batch)``; returns a ``lookalike.objectives.Loss``.
        batches: Endless iterator of batches. Tensors in a batch are moved to the device of the learner.
        optimizer: Optimizer of the learner's parameters.
        steps: Number of optimizer steps, including those that ``progress`` has done.
        seed: Seed of torch's global generator, which is set anew before every step.
        evaluate: Returns metrics on held-out data. The learner is in eval mode during the call.
        evaluate_every: Steps between evaluations; None: only after the last step.
        evaluate_start: Also evaluate before the first step.
        count_start: The evaluation before the first step may be the best one.
        monitor: The metric that decides which evaluation is best; higher is better.
        patience: Stop after so many evaluations without improvement; None: never.
        restore_best: Module whose weights are set back to those of the best evaluation at the end.
        lr_schedule: A torch scheduler, stepped after every step, or ``lookalike.training.optim.LRSchedule``, whose
            plateau is one of the monitored metric or, without ``evaluate``, of the mean training loss of an interval.
        accumulate: Batches per step; their gradients are averaged.
        clip_norm: Largest norm of the gradient; None: no limit.
        clip_value: Largest absolute entry of the gradient; None: no limit.
        fabric: Launched Fabric with which learner and optimizer were set up; None: one process, the learner's device.
        before_step: Called before every step with the number of steps done.
        before_update: Called between gradient clipping and the optimizer step.
        on_step: Called after every step with the number of steps done and the mean loss of the step's batches. With
            ``clip_norm``, ``parts["gradient"]`` holds the norm of the gradient before clipping.
        on_evaluation: Called after every evaluation with the number of steps done and the metrics.
        progress: State to continue from; updated in place.

    Returns:
        Metrics, losses and the best step.

    Raises:
        RunFailed: If the loss is not finite.
        ValueError: If the batches run out or ``evaluate`` does not return ``monitor``.
    """
    if fabric is None:
        fabric = _single_process(learner)
        learner, optimizer = fabric.setup(learner, optimizer)
    if progress is None:
        progress = Progress()
    stepper = Stepper(
        learner, batches, optimizer, fabric, seed, lr_schedule, accumulate, clip_norm, clip_value, before_update
    )
    evaluations: list[tuple[int, Metrics]] = []
    losses: list[float] = []
    best_weights: dict[str, Tensor] = {}
    ending = ALL_STEPS_DONE
    learner.train()
    while True:
        starting = progress.step == 0 and evaluate_start
        due = evaluation_is_due(progress.step, steps, evaluate_every) or starting
        if due and progress.step != progress.evaluated:
            metrics: Metrics = {}
            if evaluate is not None:
                with in_eval_mode(learner):
                    metrics = evaluate()
            if progress.interval:
                losses.append(_finite_mean(progress.interval, progress.step))
                progress.interval = []
            counts = count_start or progress.step > 0
            is_best = update_best(progress, metrics, monitor, counts)
            if metrics:
                evaluations.append((progress.step, metrics))
            if isinstance(lr_schedule, LRSchedule) and counts:
                if metrics:
                    lr_schedule.report(metrics[monitor])
                elif losses:  # nothing is held out: the training loss decides
                    lr_schedule.report(-_mean_of_processes(losses[-1], fabric))
            if is_best and restore_best is not None:
                best_weights = {name: value.clone() for name, value in restore_best.state_dict().items()}
            if on_evaluation is not None:
                on_evaluation(progress.step, metrics)
        if progress.step >= steps:
            break
        if patience is not None and progress.waited >= patience:
            ending = f"no better {monitor} in {patience} evaluations"
            break
        if before_step is not None:
            before_step(progress.step)
        loss = stepper.step(progress.step)
        progress.step += 1
        progress.interval.append(loss.value)
        if on_step is not None:
            on_step(progress.step, loss)
    if restore_best is not None and best_weights:
        restore_best.load_state_dict(best_weights)
    return FitResult(evaluations, losses, progress.best, progress.best_step, progress.step, ending)


def evaluation_is_due(step: int, steps: int, every: int | None) -> bool:
    """Whether ``fit`` evaluates after ``step`` of ``steps`` steps; the start counts as step 0."""
    return step >= steps or (every is not None and step > 0 and step % every == 0)


def update_best(progress: Progress, metrics: Metrics, monitor: str, counts: bool = True) -> bool:
    """Note an evaluation in ``progress``; return whether it is the best of those that count.

    Without metrics the last one is.
    """
    if metrics and monitor not in metrics:
        raise ValueError(f"monitor must be one of {', '.join(metrics)}, got {monitor!r}")
    is_best = not metrics or not progress.best or metrics[monitor] > progress.best[monitor]
    progress.evaluated = progress.step
    progress.start = progress.start or metrics
    if not counts:
        return False
    if is_best:
        progress.best, progress.best_step, progress.waited = metrics, progress.step, 0
    else:
        progress.waited += 1
    return is_best


@dataclass
class Stepper:
    """Takes optimizer steps; the arguments are those of ``fit``."""

    learner: Any  # as Fabric set it up
    batches: Iterator[Sequence[Any]]
    optimizer: Optimizer
    fabric: "Fabric"
    seed: int
    lr_schedule: LRScheduler | LRSchedule | None
    accumulate: int
    clip_norm: float | None
    clip_value: float | None
    before_update: Callable[[], None] | None

    def step(self, number: int) -> Loss:
        """Take step ``number``, counted from 0, over ``accumulate`` batches; return their mean loss, detached."""
        torch.manual_seed(mix_seeds(self.seed, number, self.fabric.global_rank))
        if isinstance(self.lr_schedule, LRSchedule):
            self.lr_schedule.set_for(number)
        totals: dict[str, Tensor] = {}
        for turn in range(self.accumulate):
            loss = self._backward(number, is_last=turn == self.accumulate - 1)
            for name, value in {"loss": loss.value.detach(), **loss.parts}.items():
                totals[name] = totals.get(name, 0) + value
        if isinstance(self.lr_schedule, LRSchedule):
            self.lr_schedule.drop_waiting(number)
        parts = {name: value / self.accumulate for name, value in totals.items()}
        if self.clip_value is not None:
            self.fabric.clip_gradients(self.learner, self.optimizer, clip_val=self.clip_value)
        if self.clip_norm is not None:
            norm = self.fabric.clip_gradients(
                self.learner, self.optimizer, max_norm=self.clip_norm, error_if_nonfinite=False
            )
            if norm is not None:
                parts["gradient"] = norm.detach()
        if self.before_update is not None:
            self.before_update()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if isinstance(self.lr_schedule, LRScheduler):
            self.lr_schedule.step()
        return Loss(parts.pop("loss"), parts)

    def _backward(self, number: int, is_last: bool) -> Loss:
        """Add the gradients of the next batch; processes exchange theirs after the last batch of a step."""
        batch = next(self.batches, None)
        if batch is None:
            raise ValueError(f"the batches ended before step {number}: fit needs an endless iterator")
        with self.fabric.no_backward_sync(self.learner, enabled=not is_last):
            loss: Loss = self.learner(*self.fabric.to_device(batch))
            self.fabric.backward(loss.value / self.accumulate)
        return loss


def _single_process(learner: nn.Module) -> "Fabric":
    from lightning_fabric import Fabric

    device = next(learner.parameters()).device
    if device.type == "cuda":
        return Fabric(accelerator="cuda", devices=[device.index or 0])
    return Fabric(accelerator=device.type, devices=1)


def _mean_of_processes(value: float, fabric: "Fabric") -> float:
    """The same number in every process, which then have the same learning rate."""
    if fabric.world_size == 1:
        return value
    return float(cast(Tensor, fabric.all_reduce(torch.tensor(value, device=fabric.device), reduce_op="mean")))


def _finite_mean(losses: list[Tensor], step: int) -> float:
    mean = float(torch.stack([loss.to(losses[-1].device) for loss in losses]).mean())
    if not isfinite(mean):
        raise RunFailed(f"the loss is not finite any more around step {step}: try a lower learning rate")
    return mean
