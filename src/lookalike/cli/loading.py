"""Loads the model that a command works with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lookalike.cli.config_file import UsageError
from lookalike.cli.interrupt import exit_on_interrupt

if TYPE_CHECKING:
    from lookalike.inference.model import TrainedModel


def load_model(run: Path, size: int | None, device: str | None) -> TrainedModel:
    """Load a trained model, or a backbone with its own weights.

    Args:
        run: Folder of a run, or the name of a backbone.
        size: Side of the input in pixels, for a backbone only.
        device: Torch device; None for a GPU if there is one.

    Returns:
        The model, ready to embed pictures.

    Raises:
        UsageError: If ``size`` is given for a run.
    """
    with exit_on_interrupt():
        from lookalike import models
        from lookalike.inference import model as trained

    if not run.exists() and models.is_backbone(str(run)):
        return trained.untrained(str(run), size=size, device=device)
    if size is not None:
        raise UsageError("--size is for a backbone given by name; a run has its own size")
    return trained.load(run, device)
