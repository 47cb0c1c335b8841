"""Restarts: training returns to its best weights, with a lower learning rate.

After the steps in ``settings.restarts``, the weights of model and loss become those of the best evaluation so far, and
the learning rate a tenth of the first rate ("initial") or of the rate before ("current"). The moments of the optimizer
stay. LIBC is trained with two restarts. Its released code sets a tenth of the first rate at both of them.
"""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lookalike.training.optim import LRSchedule

FACTOR = 0.1


class Restarts:
    """Keeps the best weights of a run and returns to them.

    Args:
        learner: Model and loss.
        lr_schedule: Its rates are lowered.
        steps: Steps after which training restarts.
        restart_lr: "initial": a restart sets a tenth of the first rate. "current": a tenth of the rate before it.
    """

    def __init__(
        self,
        learner: nn.Module,
        lr_schedule: LRSchedule,
        steps: Sequence[int],
        restart_lr: Literal["initial", "current"] = "current",
    ) -> None:
        self.learner, self.lr_schedule, self.steps = learner, lr_schedule, steps
        self.restart_lr = restart_lr
        self.best: dict[str, Tensor] = {}

    @torch.no_grad()
    def keep(self) -> None:
        """Keep a copy of the current weights and buffers, on the CPU."""
        self.best = {name: value.to("cpu", copy=True) for name, value in self._tensors().items()}

    def before_step(self, step: int) -> bool:
        """Return to the best weights if a restart is due after ``step`` steps; return whether it was."""
        if step not in self.steps:
            return False
        if self.restart_lr == "initial":
            self.lr_schedule.scale = FACTOR
        else:
            self.lr_schedule.scale *= FACTOR
        if self.best:
            self.learner.load_state_dict({**self.learner.state_dict(), **self.best})
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the best weights."""
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned."""
        self.best = state["best"]

    def _tensors(self) -> dict[str, Tensor]:
        """Weights and buffers; a memory or a count of batches is not set back."""
        state = self.learner.state_dict()
        return {name: value for name, value in state.items() if isinstance(value, Tensor)}
