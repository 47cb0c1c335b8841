"""Pictures to batches: loaders whose output does not depend on the number of workers, ranks and restarts.

The augmentation of a picture is seeded by (seed, epoch, turn, index) alone; the random state of the process stays as it
was. A picture that can no longer be read ends the run with one line that names it, also from a worker.
"""

import gc
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
    """Return the batch size for evaluation: what fits the caches of a CPU, or keeps a GPU busy."""
    return 128 if torch.cuda.is_available() else 16


def mix_seeds(*numbers: int) -> int:
    """Return a seed of 64 bits that depends on all numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


class TrainingSet(Dataset[Sample]):
    """Pictures under a random transform that uses torch's global generator.

    Args:
        pictures: The table.
        transform: Picture -> (3, size, size).
        seed: Seed of the augmentation.
    """

    def __init__(self, pictures: Pictures, transform: Transform, seed: int = 0) -> None:
        check_count("seed", seed, least=0)
        self.pictures, self.transform, self.seed = pictures, transform, seed

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, draw: Draw) -> Sample:
        index, epoch, turn = draw
        image = self.pictures.image(index)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(mix_seeds(self.seed, epoch, turn, index))  # without the GPUs
            numbers = self.transform(image)
        return numbers, int(self.pictures.labels[index]), index


class PictureLoader(DataLoader[Any]):
    """A DataLoader that passes on an ``UnreadablePicture`` from its workers unchanged.

    A plain DataLoader would raise a RuntimeError with the worker's traceback. Here the failure travels as a value.

    Forked workers never collect garbage that they inherit: it may hold sessions of ONNX Runtime or OpenVINO, whose
    threads do not exist in the worker, so that destroying them would wait for ever.
    """

    def __init__(self, dataset: Dataset[Any], **settings: Any) -> None:
        super().__init__(_Carrying(dataset), collate_fn=_collate, **settings)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a generator, not DataLoader's own iterator
        gc.freeze()
        try:
            batches = super().__iter__()  # starts the workers
        finally:
            gc.unfreeze()
        for batch in batches:
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
    erase: float = 0.0,
    workers: int | None = None,
) -> PictureLoader:
    """Load the endless batches of a sampler, augmented.

    Args:
        pictures: Training pictures; the sampler has their labels.
        spec: Input of the backbone.
        sampler: Chooses the pictures of every batch; its seed is also that of the augmentation.
        crop: Kind of random crop.
        flip: Whether half of the pictures are mirrored.
        erase: Share of the pictures in which a rectangle is erased.
        workers: Processes that read pictures; None chooses by the machine.

    Returns:
        Batches (images, labels, indices).
    """
    dataset = TrainingSet(pictures, training_transform(spec, crop=crop, flip=flip, erase=erase), sampler.seed)
    return PictureLoader(dataset, batch_sampler=sampler, **loader_settings(workers))


def default_workers() -> int:
    """Return the number of usable cores minus one, at most eight."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores - 1, MOST_WORKERS)


def loader_settings(workers: int | None) -> dict[str, Any]:
    """Return the arguments of a ``PictureLoader`` with ``workers`` processes; None chooses by the machine."""
    if workers is None:
        workers = default_workers()
    check_count("workers", workers, least=0)
    return {
        "num_workers": workers,
        "persistent_workers": workers > 0,
        "pin_memory": torch.cuda.is_available(),
        "generator": torch.Generator(),  # the loader draws a seed from it, not from the global generator
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
