"""The log of a run: means of losses over some steps, as rows of metrics.csv and scalars for TensorBoard."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Row = dict[str, Any]


class Log:
    """Collects values step by step and makes rows of their means.

    Values stay on their device until a row is made, so that no step waits for the device. A value that is not finite
    stays visible in the sums, where ``not_finite`` finds it.

    Args:
        writer: Writes events for TensorBoard; None in all processes but one.
        pictures_per_step: Pictures of one step, to compute the speed.
        started: When the work for the run began, as ``time.monotonic`` gives it; None: now.
    """

    def __init__(self, writer: "SummaryWriter | None", pictures_per_step: int, started: float | None = None) -> None:
        self.writer, self.pictures_per_step = writer, pictures_per_step
        self.rows: list[Row] = []
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, int] = {}
        self._opened = time.monotonic() if started is None else started
        self._last_row, self._last_row_cpu = time.monotonic(), time.process_time()

    @property
    def seconds(self) -> float:
        """Duration of the run with its setup, over all times it was resumed."""
        return time.monotonic() - self._opened

    def add(self, values: dict[str, Tensor]) -> None:
        """Add the values of a step."""
        for name, value in values.items():
            if name in self.sums:
                self.sums[name] = self.sums[name] + value
            else:
                self.sums[name] = value.clone()
            self.counts[name] = self.counts.get(name, 0) + 1

    def not_finite(self) -> str | None:
        """Return "loss" or "gradient" if it is not finite any more, else None."""
        for name in ("loss", "gradient"):
            if name in self.sums and not isfinite(float(self.sums[name])):
                return name
        return None

    def close_row(self, step: int, **more: float) -> Row:
        """Make a row of the means since the last row."""
        values = self._means(more)
        self.record(step, values, "training/")
        self.sums, self.counts = {}, {}
        self._last_row, self._last_row_cpu = time.monotonic(), time.process_time()
        return values

    def rows_with_rest(self, step: int, **more: float) -> list[Row]:
        """Return all rows, and one more for the steps since the last row.

        The additional row is not stored: a resumed run continues as if it had not been made.
        """
        if not self.counts:
            return self.rows
        return _append(self.rows, {"step": step, "seconds": round(self.seconds, 1), **self._means(more)})

    def record(self, step: int, values: dict[str, Any], prefix: str) -> None:
        """Record values in a row of their own, or in the last row if it is of the same step."""
        self.rows = _append(self.rows, {"step": step, "seconds": round(self.seconds, 1), **values})
        if self.writer is not None:
            for name, value in values.items():
                self.writer.add_scalar(prefix + name, value, step)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time inside the ``with`` block from the speed of training."""
        began, began_cpu = time.monotonic(), time.process_time()
        try:
            yield
        finally:
            self._last_row += time.monotonic() - began
            self._last_row_cpu += time.process_time() - began_cpu

    def state_dict(self) -> dict[str, Any]:
        """Return rows and sums."""
        return {"rows": self.rows, "sums": self.sums, "counts": self.counts}

    def load_state_dict(self, state: dict[str, Any], device: torch.device, seconds: float) -> None:
        """Restore what ``state_dict`` returned."""
        self.rows, self.counts = state["rows"], state["counts"]
        self.sums = {name: value.to(device) for name, value in state["sums"].items()}
        self._opened -= seconds

    def close(self) -> None:
        """Close the events file."""
        if self.writer is not None:
            self.writer.close()

    def _means(self, more: dict[str, float]) -> Row:
        means = {name: float(value) / self.counts[name] for name, value in self.sums.items()}
        steps = self.counts.get("loss", 0)
        speed = self.pictures_per_step * steps / max(time.monotonic() - self._last_row, 1e-9)
        cpu_seconds = (time.process_time() - self._last_row_cpu) / max(steps, 1)
        return {**more, "pictures/s": round(speed, 1), "CPU ms/step": round(1000 * cpu_seconds, 3), **means}


def in_short(row: Row) -> str:
    """Format a row for the progress bar."""
    text = f"loss {row['loss']:.4f}"
    for name in ("metric", "zero-shot", "centres"):
        if name in row:
            text += f", {name} {row[name]:.3f}"
    return f"{text}, rate {row['rate']:.1e}, {row['pictures/s']:.0f} pictures/s"


def _append(rows: list[Row], row: Row) -> list[Row]:
    """Rows and one more, which is merged with the last if it is of the same step."""
    if rows and rows[-1]["step"] == row["step"]:
        return [*rows[:-1], {**rows[-1], **row}]
    return [*rows, row]
