"""What a run writes down: sums of what happened since the last row, rows for metrics.csv, scalars for TensorBoard."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter


class Log:
    """``add`` values step by step, on whatever device; ``row`` makes their means a row.

    Values stay on the device until then, so that no step waits for it. A value that is not finite stays visible in the
    sums, which is how ``broken`` finds it.
    """

    def __init__(self, writer: SummaryWriter | None) -> None:
        self.writer = writer
        self.rows: list[dict[str, Any]] = []
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}
        self._since = time.monotonic()

    def add(self, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value.clone()
            self.counts[name] = self.counts.get(name, 0) + 1

    def broken(self) -> str | None:
        """Which of loss and gradient is not finite any more."""
        for name in ("loss", "gradient"):
            if name in self.sums and not isfinite(float(self.sums[name])):
                return name
        return None

    def row(self, step: int, seconds: float, pictures_per_step: int, **more: float) -> dict[str, float]:
        """A row of means since the last one; also gives them back."""
        values = self._means(pictures_per_step, more)
        self.record(step, seconds, values, "training/")
        self.sums, self.counts, self._since = {}, {}, time.monotonic()
        return values

    def rows_so_far(self, step: int, seconds: float, pictures_per_step: int, **more: float) -> list[dict[str, Any]]:
        """The rows, and one of what came since the last of them, for where a run ends between two.

        That one is not kept: if the run goes on, it goes on as if it had not been looked at.
        """
        if not self.counts:
            return self.rows
        row = {"step": step, "seconds": round(seconds, 1), **self._means(pictures_per_step, more)}
        return _with(self.rows, row)

    def record(self, step: int, seconds: float, values: dict[str, Any], prefix: str) -> None:
        """Values for a row of their own, or for the last one if it is of the same step."""
        self.rows = _with(self.rows, {"step": step, "seconds": round(seconds, 1), **values})
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(prefix + name, value, step)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time that does not count for the speed of training."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._since += time.monotonic() - began

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "sums": self.sums, "counts": self.counts}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self.rows, self.counts = state["rows"], state["counts"]
        self.sums = {name: value.to(device) for name, value in state["sums"].items()}

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()

    def _means(self, pictures_per_step: int, more: dict[str, float]) -> dict[str, float]:
        means = {name: float(value) / self.counts[name] for name, value in self.sums.items()}
        speed = pictures_per_step * self.counts.get("loss", 0) / max(time.monotonic() - self._since, 1e-9)
        return {**more, "pictures/s": round(speed, 1), **means}


def _with(rows: list[dict[str, Any]], row: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows and one more, which is joined to the last if it is of the same step."""
    if rows and rows[-1]["step"] == row["step"]:
        return [*rows[:-1], {**rows[-1], **row}]
    return [*rows, row]
