"""Loaders: the same tensors whoever computes them, and a clear end when a picture has gone."""

import gc
import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from lookalike.data.loading import PictureLoader, TrainingSet, training_loader
from lookalike.data.pictures import Pictures, UnreadablePicture
from lookalike.data.sampler import ClassBatches, Draw
from lookalike.data.transforms import training_transform
from lookalike.models.input_spec import InputSpec

SPEC = InputSpec(size=16)


@dataclass
class Noise:
    """Reader of a picture of noise for each number, or of nothing where ``missing`` exists."""

    missing: Path | None = None

    def __call__(self, index: int) -> Image.Image:
        if self.missing is not None and self.missing.exists() and index == 7:
            raise UnreadablePicture("birds/wren/7.jpg", "the file is no longer there")
        pixels = np.random.default_rng(index).integers(0, 256, (24, 30, 3), dtype=np.uint8)
        return Image.fromarray(pixels)

    def key(self, index: int) -> str:
        return f"noise {index}"


def noise(count: int = 24, classes: int = 4, missing: Path | None = None) -> Pictures:
    return Pictures(
        name="noise",
        names=tuple(f"noise/{index}" for index in range(count)),
        labels=np.arange(count, dtype=np.int64) % classes,
        classes=tuple("abcdefgh"[:classes]),
        reader=Noise(missing),
        origins=np.arange(count, dtype=np.int64),
    )


def random_state() -> tuple[Tensor, object]:
    return torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]  # noqa: NPY002


def test_augmentation_depends_on_the_draw_and_the_seed_alone() -> None:
    transform = training_transform(SPEC)
    data = TrainingSet(noise(), transform, seed=1)
    first, label, index = data[Draw(5, 2, 0)]
    assert (label, index, len(data)) == (1, 5, 24)
    torch.manual_seed(123)
    data[Draw(9, 0, 0)]
    assert torch.equal(TrainingSet(noise(), transform, seed=1)[Draw(5, 2, 0)][0], first)
    for other in (Draw(5, 3, 0), Draw(5, 2, 1)):
        assert not torch.equal(data[other][0], first)
    assert not torch.equal(TrainingSet(noise(), transform, seed=2)[Draw(5, 2, 0)][0], first)


def batches(pictures: Pictures, batch_size: int = 8, per_class: int = 2, **settings: int) -> ClassBatches:
    return ClassBatches(pictures.labels, batch_size, per_class, **settings)


def test_the_random_state_of_the_process_is_left_alone() -> None:
    before = random_state()
    for workers in (0, 1):
        next(iter(training_loader(noise(), SPEC, batches(noise()), workers=workers)))
    after = random_state()
    assert torch.equal(before[0], after[0])
    assert before[1] == after[1]


def test_workers_ranks_and_restarts_do_not_change_a_tensor() -> None:
    whole = list(islice(training_loader(noise(), SPEC, batches(noise(), seed=5), workers=0), 5))
    assert [part.shape for part in whole[0]] == [(8, 3, 16, 16), (8,), (8,)]
    assert whole[0][1].dtype == whole[0][2].dtype == torch.int64
    assert torch.equal(whole[0][1], whole[0][2] % 4)
    for workers in (1, 2):
        resumed = training_loader(noise(), SPEC, batches(noise(), seed=5, start=2), workers=workers)
        for expected, got in zip(whole[2:], islice(resumed, 3), strict=True):
            assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    ranks = [
        next(iter(training_loader(noise(), SPEC, batches(noise(), seed=5, rank=rank, world_size=2), workers=0)))
        for rank in (0, 1)
    ]
    for part in range(3):
        assert torch.equal(torch.cat([rank[part] for rank in ranks]), whole[0][part])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_picture_that_goes_away_is_named_in_one_line(workers: int, tmp_path: Path) -> None:
    missing = tmp_path / "gone"
    pictures = noise(missing=missing)
    training = iter(training_loader(pictures, SPEC, batches(pictures, 24, 6), workers=workers))
    next(training)
    missing.touch()
    with pytest.raises(UnreadablePicture) as caught:
        list(training)
    assert str(caught.value) == "birds/wren/7.jpg: the file is no longer there"
    assert caught.value.name == "birds/wren/7.jpg"
    with pytest.raises(UnreadablePicture):
        TrainingSet(pictures, training_transform(SPEC))[Draw(7, 0, 0)]


def test_errors() -> None:
    with pytest.raises(ValueError, match=r"^workers must be at least 0, got -1$"):
        training_loader(noise(), SPEC, batches(noise()), workers=-1)
    with pytest.raises(ValueError, match=r"^seed must be at least 0, got -1$"):
        TrainingSet(noise(), training_transform(SPEC), seed=-1)
    with pytest.raises(ValueError, match="needs 8 classes, got 4"):
        batches(noise(), 32, 4)


class _InCycle:
    """Garbage that only the collector frees; it notes in which process that happens."""

    def __init__(self, log: Path) -> None:
        self.log, self.itself = log, self

    def __del__(self) -> None:
        with self.log.open("a") as file:
            file.write(f"{os.getpid()}\n")


class _Collecting(Dataset[int]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> int:
        gc.collect()
        return os.getpid()


def test_workers_do_not_destroy_what_they_inherit(tmp_path: Path) -> None:
    log = tmp_path / "freed"
    gc.disable()  # not before the worker starts
    try:
        _InCycle(log)
        workers = [int(process) for batch in PictureLoader(_Collecting(), num_workers=1) for process in batch]
        assert os.getpid() not in workers
        assert not log.exists()
    finally:
        gc.enable()
    gc.collect()
    assert log.read_text() == f"{os.getpid()}\n"  # the parent still does
