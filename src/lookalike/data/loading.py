"""Pictures to batches: data sets and loaders whose output does not depend on who computes it.

The augmentation of a picture is seeded by (seed, epoch, turn, index) alone, so any number of workers, ranks and
restarts gives the same tensors, and the random state of the process stays as it was. A picture that can no longer be
read, the folder having gone away in the seventh epoch, ends the run with the one line that names it, also out of a
worker.
"""

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from lookalike._util.checks import check_count
from lookalike.data.pictures import Pictures, UnreadablePicture
from lookalike.data.sampler import ClassBatches, Draw
from lookalike.data.transforms import Crop, Transform, training_transform
from lookalike.models.input_spec import InputSpec

Sample = tuple[Tensor, int, int]  # numbers (3, size, size), label, index of the picture
Batch = tuple[Tensor, Tensor, Tensor]  # the same for a batch: (B, 3, size, size), (B,), (B,)

MOST_WORKERS = 8


def evaluation_batch() -> int:
    """Pictures per batch where nothing is learnt: as many as fit the caches of a CPU, or keep a GPU busy."""
    return 128 if torch.cuda.is_available() else 16


class TrainingSet(Dataset[Sample]):
    """Pictures under a random transform that takes its chance from torch's global generator."""

    def __init__(self, pictures: Pictures, transform: Transform, seed: int = 0) -> None:
        check_count("seed", seed, least=0)
        self.pictures, self.transform, self.seed = pictures, transform, seed

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, draw: Draw) -> Sample:
        index, epoch, turn = draw
        image = self.pictures.image(index)
        mixed = np.random.SeedSequence((self.seed, epoch, turn, index)).generate_state(1, np.uint64)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(mixed[0]))  # torch.manual_seed would reseed the GPUs too
            numbers = self.transform(image)
        return numbers, int(self.pictures.labels[index]), index


class PictureLoader(DataLoader[Any]):
    """A DataLoader out of whose workers an ``UnreadablePicture`` comes as it is.

    A plain one would turn it into a RuntimeError with the worker's traceback: the failure travels as a value instead.
    """

    def __init__(self, dataset: Dataset[Any], **settings: Any) -> None:
        super().__init__(_Carrying(dataset), collate_fn=_collate, **settings)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a generator, not DataLoader's own iterator
        for batch in super().__iter__():
            if isinstance(batch, UnreadablePicture):
                raise batch
            yield batch


def training_loader(
    pictures: Pictures,
    spec: InputSpec,
    sampler: ClassBatches,
    *,
    crop: Crop = "area",
    flip: bool = True,
    workers: int | None = None,
) -> PictureLoader:
    """Load the endless batches of a sampler, augmented.

    Args:
        pictures: Training pictures; the sampler has their labels.
        spec: Input of the backbone.
        sampler: Chooses the pictures of every batch; its seed is also that of the augmentation.
        crop: Kind of random crop.
        flip: Whether half of the pictures are mirrored.
        workers: Processes that read pictures; None chooses by the machine.

    Returns:
        Batches (images, labels, indices).
    """
    dataset = TrainingSet(pictures, training_transform(spec, crop=crop, flip=flip), sampler.seed)
    return PictureLoader(dataset, batch_sampler=sampler, **loader_settings(workers))


def default_workers() -> int:
    """One process for each core that this one may use, but one, and no more than eight."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores - 1, MOST_WORKERS)


def loader_settings(workers: int | None) -> dict[str, Any]:
    """Arguments of a ``PictureLoader`` with ``workers`` processes; None chooses by the machine."""
    if workers is None:
        workers = default_workers()
    check_count("workers", workers, least=0)
    return {
        "num_workers": workers,
        "persistent_workers": workers > 0,
        "pin_memory": torch.cuda.is_available(),
        "generator": torch.Generator(),  # a loader draws a seed for its workers, else from the process's own generator
    }


class _Carrying(Dataset[Any]):
    def __init__(self, dataset: Dataset[Any]) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # every Dataset here has a length

    def __getitem__(self, index: Any) -> Any:
        try:
            return self.dataset[index]
        except UnreadablePicture as failure:
            return failure


def _collate(samples: list[Any]) -> Any:
    for sample in samples:
        if isinstance(sample, UnreadablePicture):
            return sample
    batch = default_collate(samples)
    return tuple(batch) if isinstance(batch, list) else batch
