"""The held-out pictures of a finished run, and what a distance between them means if they are seen whole.

Training sees crops of one size. ``lookalike index`` sees whole pictures unless the run says otherwise, and their
distances differ. So ``lookalike train`` also embeds up to ``MOST`` held-out pictures as an index will, and fits the
calibration that indexes of the run take over.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from lookalike import data
from lookalike.data.pictures import Pictures
from lookalike.inference.model import load
from lookalike.retrieval.calibration import WHOLE_FILE, Calibration, find_neighbourhoods, fit
from lookalike.training.checkpoint import RunFolder
from lookalike.training.evaluate import held_out_source, roles
from lookalike.training.settings import Settings
from lookalike.training.split import describe, divide

MOST = 1_000  # pictures that are seen whole for the calibration; they are not cached


def calibrate_whole(
    run: Path, bar: Callable[[int, str], Callable[[int], None]] = lambda *_: lambda _: None
) -> Calibration | None:
    """Fit P(same | distance) for whole pictures on the held-out pictures of a run, and store it there.

    Args:
        run: Folder of the run.
        bar: Called with a number of pictures and the name of the work; returns what to call with finished pictures.

    Returns:
        The calibration; None if the run is for crops, its backbone sees no whole pictures, or too few are held out.

    Raises:
        ValueError: If the pictures or the model can no longer be read.
    """
    settings = RunFolder(run).read_settings()
    if settings.view != "whole":
        return None
    train, pictures = read_pictures(run, settings)
    if pictures is None:
        return None
    pictures = sample_classes(pictures, MOST, settings.seed)
    model = load(run, settings.device if settings.device != "auto" else None, settings.engine, view="whole")
    if not model.spec.sees_whole:
        return None
    tick = bar(len(pictures), "calibrating whole pictures")
    vectors = model.embed_table(pictures, workers=settings.workers, tick=tick)
    try:
        queries, gallery = roles(pictures)
        neighbourhoods = find_neighbourhoods(
            vectors, pictures.labels, distance=model.distance, queries=queries, gallery=gallery
        )
        source, unseen = held_out_source(train, pictures)
        calibration = fit(neighbourhoods, source, unseen=unseen)
    except ValueError:  # too few
        return None
    calibration.write(run, WHOLE_FILE)
    return calibration


def read_pictures(run: Path, settings: Settings) -> tuple[Pictures, Pictures | None]:
    """Read the training and held-out pictures of a run, as it divided them.

    Args:
        run: Folder of the run.
        settings: Its settings.

    Returns:
        Training pictures, and held-out pictures or None.

    Raises:
        ValueError: If the run does not say where they are, or they changed.
    """
    if settings.data is None:
        raise ValueError("the run does not say where its pictures are")
    described = RunFolder(run).read_json("data.json")
    left_out = {name for name, _ in described["left_out"]}
    pictures = data.load(settings.data, check=False)
    kept = np.array([name not in left_out for name in pictures.names], dtype=bool)
    if not kept.all():
        pictures = pictures.take(kept)
    train, held_out, _ = divide(pictures, settings)
    now = describe(pictures, train, held_out)
    if (now["training"], now["held_out"]) != (described["training"], described["held_out"]):
        raise ValueError(f"{settings.data} has changed since the run was trained")
    return train, held_out


def sample_classes(pictures: Pictures, most: int, seed: int) -> Pictures:
    """Return all pictures, or as many whole classes as make ``most`` pictures."""
    if len(pictures) <= most:
        return pictures
    order = np.random.default_rng(seed).permutation(len(pictures.classes))
    cumulative = np.cumsum(pictures.counts()[order])
    chosen = order[: max(2, int((cumulative <= most).sum()))]
    return pictures.take(np.isin(pictures.labels, chosen))
