"""The learning rate over a run: constant, cosine or halved on a plateau, and a backbone that may wait at first."""

from math import cos, pi
from typing import Any, Literal

from torch.optim import Optimizer

# In evaluations, counted as torch's ReduceLROnPlateau does: the fifth without a better figure lowers the rate, the two
# after it do not count.
PLATEAU_FACTOR, PLATEAU_PATIENCE, PLATEAU_COOLDOWN = 0.5, 4, 2


class Rates:
    """Sets the rate of every group: its own ``lr`` at the start, times a factor of the step.

    Groups with ``waits=True`` stay at 0 for the first ``warm_up`` steps.
    """

    def __init__(
        self, optimiser: Optimizer, schedule: Literal["constant", "cosine", "plateau"], steps: int, warm_up: int = 0
    ) -> None:
        self.optimiser, self.schedule, self.steps, self.warm_up = optimiser, schedule, steps, warm_up
        self.base = [group["lr"] for group in optimiser.param_groups]
        self.factor = 1.0  # of the plateau
        self.best = float("-inf")
        self.waited = 0
        self.cooling = 0

    def set_for(self, step: int) -> None:
        """Before step number ``step``, counted from 0."""
        factor = 0.5 * (1 + cos(pi * min(step / self.steps, 1))) if self.schedule == "cosine" else self.factor
        for group, base in zip(self.optimiser.param_groups, self.base, strict=True):
            group["lr"] = 0.0 if group.get("waits") and step < self.warm_up else base * factor

    def report(self, figure: float) -> None:
        """An evaluation; after too many without a better figure the rate is lowered."""
        if self.schedule != "plateau":
            return
        self.waited = 0 if figure > self.best or self.cooling else self.waited + 1
        self.best = max(self.best, figure)
        self.cooling = max(self.cooling - 1, 0)
        if self.waited > PLATEAU_PATIENCE:
            self.factor *= PLATEAU_FACTOR
            self.waited, self.cooling = 0, PLATEAU_COOLDOWN

    def state_dict(self) -> dict[str, Any]:
        return {"factor": self.factor, "best": self.best, "waited": self.waited, "cooling": self.cooling}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.factor, self.best = state["factor"], state["best"]
        self.waited, self.cooling = state["waited"], state["cooling"]
