"""Loads the model that a command works with, and embeds pictures with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lookalike._util.progress import Display
from lookalike._util.signals import StopRequest
from lookalike.cli.config_file import UsageError
from lookalike.cli.interrupt import exit_on_interrupt

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lookalike.data.pictures import Pictures
    from lookalike.inference.engine_name import EngineName
    from lookalike.inference.model import TrainedModel


def load_model(run: Path, size: int | None, device: str | None, engine: EngineName) -> TrainedModel:
    """Load a trained model, or a backbone by its name; only a backbone takes another ``size`` of its input."""
    with exit_on_interrupt():
        from lookalike import models
        from lookalike.inference import model as trained

    if not run.exists() and models.is_backbone(str(run)):
        return trained.untrained(str(run), size=size, device=device, engine=engine)
    if size is not None:
        raise UsageError("--size is for a backbone given by name; a run has its own size")
    return trained.load(run, device, engine)


def embed_pictures(model: TrainedModel, pictures: Pictures, workers: int | None) -> NDArray[np.float32]:
    """Embed a table of pictures with a progress bar; a signal stops it."""
    with StopRequest().listening() as stop, Display(stop).bar(len(pictures), "embedding") as tick:
        return model.embed_table(pictures, workers=workers, tick=tick)
