"""Loads the model that a command works with, and embeds pictures with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

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

NO_CACHE = "none"
CACHE_HELP = "folder of cached features of crops; null: ~/.cache/lookalike, or LOOKALIKE_CACHE; none: no cache"
WEIGHTS_HELP = "weights of a backbone given by name: auto (bundled), timm (timm downloads them), a file, or a run"


VIEW_HELP = "whole: the whole picture is seen; crop: only its centre, as in the protocols of the papers"


def load_model(
    run: Path,
    weights: str,
    size: int | None,
    device: str | None,
    engine: EngineName,
    view: Literal["whole", "crop"] | None = None,
) -> TrainedModel:
    """Load a trained model, or a backbone by its name; only a backbone takes ``weights`` and a ``size``."""
    with exit_on_interrupt():
        from lookalike import models
        from lookalike.inference import model as trained

    if not run.exists() and models.is_backbone(str(run)):
        seen: Literal["whole", "crop"] = view or "crop"
        try:
            return trained.untrained(str(run), weights=weights, size=size, device=device, engine=engine, view=seen)
        except ValueError as error:
            raise UsageError(name_weights_option(str(error))) from None
    require_backbone_options(run, weights, size)
    return trained.load(run, device, engine, view)


def view_of_run(run: Path) -> Literal["whole", "crop"] | None:
    """Return what an index made with a run sees, as its settings say; None for runs of earlier versions and others."""
    from lookalike.training.checkpoint import RunFolder

    try:
        return RunFolder(run).read_settings().view
    except (OSError, ValueError, TypeError):
        return None


def require_backbone_options(run: Path, weights: str, size: int | None) -> None:
    """Refuse options that only a backbone given by name takes."""
    for option, value, default in (("--size", size, None), ("--weights", weights, "auto")):
        if value != default:
            noun = option.removeprefix("--")
            raise UsageError(f"{option} is for a backbone given by name; {run} has its own {noun}")


def name_weights_option(message: str) -> str:
    """Let a message about missing weights name the option and what it takes without training."""
    message = message.replace("set weights to", "set --weights to").replace("'timm' to", "timm to")
    return message.replace("a file, or 'none' for a random start", "a file or a run")


def use_cache(model: TrainedModel, run: Path | None, cache: str | None, count: int, display: Display) -> None:
    """Let a model take local features from the cache, and say so.

    Features of a backbone that a run has trained serve this run alone: they are cached only if they are already.

    Args:
        model: The model.
        run: Folder of the run, or the name of a backbone; None: a backbone.
        cache: Option ``--cache``.
        count: Number of pictures.
        display: Prints the line.
    """
    if cache == NO_CACHE or model.spec.sees_whole:  # the cache holds features of one shape
        return
    folder = None
    if cache is not None:
        folder = Path(cache)
    try:
        features = model.open_cache(folder)
    except (OSError, ValueError) as error:
        display.say(f"features are not cached: {error}")
        return
    if not features.store.folder.exists() and run is not None and run.exists() and not _has_frozen_backbone(run):
        return
    lack = features.store.lacks_space(max(count - len(features.store), 0))
    if lack is not None:
        display.say(f"{lack}: nothing is cached (see --cache)")
        return
    display.say(f"features are cached in {features.store.folder} ({features.store.size / 1e9:.2f} GB)")
    model.cache = features


def _has_frozen_backbone(run: Path) -> bool:
    from lookalike.training.checkpoint import RunFolder

    try:
        return RunFolder(run).read_settings().head_only
    except (OSError, ValueError):
        return False


def embed_pictures(
    model: TrainedModel,
    pictures: Pictures,
    workers: int | None,
    run: Path | None = None,
    cache: str | None = NO_CACHE,
) -> NDArray[np.float32]:
    """Embed a table of pictures with a progress bar; a signal stops it. See ``use_cache`` for the last arguments."""
    with StopRequest().listening() as stop:
        display = Display(stop)
        use_cache(model, run, cache, len(pictures), display)
        with display.bar(len(pictures), "embedding") as tick:
            return model.embed_table(pictures, workers=workers, tick=tick)
