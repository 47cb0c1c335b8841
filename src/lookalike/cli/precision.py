"""``--precision int8``: calibrate on the user's pictures, measure what it changes, say it, then use it.

The change is measured on other pictures than those of the calibration, if there are enough: MAP@R where pictures have
labels, and how many of the ten nearest neighbours stay the same.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from lookalike.cli.output import print_status
from lookalike.data.pictures import Pictures, UnreadablePicture

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from lookalike.data.cropping import Pixels
    from lookalike.inference.model import TrainedModel

Precision = Literal["fp32", "int8"]
PRECISION_HELP = (
    "int8 is faster on a CPU (OpenVINO and nncf): it is calibrated on the pictures, and its loss is measured and said"
)
CALIBRATION = 128  # pictures whose activations give the ranges
MEASURED = 400  # pictures on which the change is measured
NEIGHBOURS = 10


class Change(NamedTuple):
    """What int8 changes.

    Attributes:
        pictures: Number of pictures that it was measured on.
        before: MAP@R in fp32; None without labels.
        after: MAP@R in int8.
        agreement: Share of the ten nearest neighbours in fp32 that are among the ten nearest in int8.
    """

    pictures: int
    before: float | None
    after: float | None
    agreement: float

    def __str__(self) -> str:
        text = f"int8 on {self.pictures:,} pictures: "
        if self.before is not None and self.after is not None:
            change = 100 * (self.after - self.before)
            text += f"MAP@R {100 * self.before:.2f} -> {100 * self.after:.2f} ({change:+.2f}), "
        return f"{text}{100 * self.agreement:.1f} % of the ten nearest neighbours stay"


def quantise_on_files(model: TrainedModel, folder: Path, names: Sequence[str]) -> TrainedModel:
    """Quantise a model on the pictures of a folder, whose class folders give labels, and print the change."""
    labels = [name.rpartition("/")[0].partition("/")[0] for name in names]
    return _quantise(model, labels, lambda i: model.preprocess.read_crop(folder / names[i]))


def quantise_on_table(model: TrainedModel, pictures: Pictures) -> TrainedModel:
    """Quantise a model on a table of pictures, and print the change."""
    table = model.preprocess.reading(pictures)
    return _quantise(model, pictures.labels.tolist(), lambda i: model.preprocess.crop(table.image(i)))


def _quantise(model: TrainedModel, labels: Sequence[Any], crop: Callable[[int], Pixels]) -> TrainedModel:
    from lookalike.inference.engine_name import require_int8
    from lookalike.inference.quantised import quantise

    require_int8("openvino", model.device)

    def read(i: int) -> Pixels | None:
        try:
            return crop(i)
        except UnreadablePicture:
            return None

    measured, calibration = choose_pictures(labels)
    wanted = sorted({*measured, *calibration})
    with ThreadPoolExecutor() as threads:
        crops = {i: pixels for i, pixels in zip(wanted, threads.map(read, wanted), strict=True) if pixels is not None}
    if len(crops) < 2:
        raise ValueError(f"int8 is calibrated on pictures, and only {len(crops)} can be read: at least 2 are needed")
    quantised = quantise(model, [crops[i] for i in calibration if i in crops])
    measured = [i for i in measured if i in crops]
    before, after = [
        np.concatenate([each.embed_crops(crops[i][None]) for i in measured]) for each in (model, quantised)
    ]
    _, codes = np.unique([str(labels[i]) for i in measured], return_inverse=True)
    print_status(str(compare(before, after, codes, model.distance)))
    return quantised


def compare(
    before: NDArray[np.float32], after: NDArray[np.float32], labels: NDArray[np.int64], distance: str
) -> Change:
    """Compare two sets of vectors (n, D) of the same pictures with labels (n,). One label alone means none."""
    from lookalike.retrieval import neighbours, retrieval_metrics

    k = min(NEIGHBOURS + 1, len(before))
    nearest = [neighbours(vectors, k=k, distance=distance).indices.tolist() for vectors in (before, after)]
    shares = []
    for row, (expected, found) in enumerate(zip(*nearest, strict=True)):
        others = [i for i in expected if i != row][:NEIGHBOURS]
        kept = [i for i in found if i != row][:NEIGHBOURS]
        shares.append(len({*others} & {*kept}) / max(1, len(others)))
    scores: list[float | None] = [None, None]
    if len(np.unique(labels)) > 1 and np.bincount(labels).max() > 1:
        scores = [retrieval_metrics(v, labels, distance=distance, ks=())["MAP@R"] for v in (before, after)]
    return Change(len(before), scores[0], scores[1], float(np.mean(shares)))


def choose_pictures(labels: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Choose pictures to measure on, of whole classes, and others to calibrate on.

    Args:
        labels: Of all pictures.

    Returns:
        Positions of both. With few pictures they are the same.
    """
    order = random.Random(0).sample(range(len(labels)), len(labels))
    calibration, rest = order[:CALIBRATION], order[CALIBRATION:]
    if len(rest) < MEASURED // 2:
        return order[:MEASURED], calibration
    classes: dict[Any, list[int]] = {}
    for i in rest:
        classes.setdefault(labels[i], []).append(i)
    by_class = [i for members in classes.values() for i in members]
    return by_class[:MEASURED], calibration
