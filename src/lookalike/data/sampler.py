"""Batches of P classes with K pictures each, so that pair losses find positives and negatives in every batch.

In an epoch every picture comes at least once. Each class is shuffled and cut into groups of K, the last one filled up
with other pictures of the class; the groups are dealt out so that a batch never has a class twice. That takes

    batches = max(ceil(groups / P), groups of the largest class)

and the remaining positions are filled by second passes through the classes, as evenly as possible.

An epoch is planned ahead from (seed, epoch) alone. So every rank finds its share without communication, and a resumed
run continues with the same batches.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Sampler

from lookalike._util.checks import check_count

Integers = NDArray[np.int64]


class Draw(NamedTuple):
    """One picture for one batch; the three numbers, with the seed of the run, decide its augmentation."""

    index: int  # type: ignore[assignment]  # hides tuple.index
    epoch: int
    turn: int  # how often this picture came before in this epoch


class ClassBatches(Sampler[list[Draw]]):
    """An endless stream of batches, epoch after epoch, for ``DataLoader(batch_sampler=...)``.

    Args:
        labels: (n,) whole numbers, as a list, an array or a tensor.
        batch_size: Size of the global batch, over all ranks together.
        per_class: Pictures per class K in a batch; 1 suits proxy losses.
        seed: Seed of the batches.
        rank: This process gets the rank-th of ``world_size`` equal shares of every global batch.
        world_size: Number of processes.
        start: First global step. A loader fetches ahead, so only the training loop knows the steps done: it sets
            ``start`` to them before it saves the ``state_dict``.

    Examples:
        >>> batches = ClassBatches([0, 0, 0, 1, 1, 1, 2, 2], batch_size=4, per_class=2)
        >>> batches.steps_per_epoch(), batches.batches_of(0).shape
        (3, (3, 4))
    """

    def __init__(
        self,
        labels: Any,
        batch_size: int,
        per_class: int = 4,
        *,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        start: int = 0,
    ) -> None:
        check_count("batch_size", batch_size)
        check_count("per_class", per_class)
        check_count("seed", seed, least=0)
        check_count("world_size", world_size)
        check_count("rank", rank, least=0)
        check_count("start", start, least=0)
        if rank >= world_size:
            raise ValueError(f"rank must be below world_size {world_size}, got {rank}")
        if batch_size % per_class:
            raise ValueError(f"batch_size must be a multiple of per_class {per_class}, got {batch_size}")
        if batch_size % world_size:
            raise ValueError(f"batch_size must be a multiple of world_size {world_size}, got {batch_size}")
        codes = _codes(labels)
        self.batch_size, self.per_class, self.seed = batch_size, per_class, seed
        self.rank, self.world_size, self.start = rank, world_size, start
        self.classes_per_batch = batch_size // per_class
        self._members = np.argsort(codes, kind="stable")  # the pictures, class by class
        self._sizes = np.bincount(codes).astype(np.int64)
        if len(self._sizes) < self.classes_per_batch:
            raise ValueError(_too_few_classes(len(self._sizes), batch_size, per_class))
        self._groups = -(-self._sizes // per_class)
        self._batches = int(max(-(-self._groups.sum() // self.classes_per_batch), self._groups.max()))

    def steps_per_epoch(self, epoch: int = 0) -> int:
        """Return the number of global batches of an epoch; here it is the same for every epoch."""
        check_count("epoch", epoch, least=0)
        return self._batches

    def locate(self, step: int) -> tuple[int, int]:
        """Return the epoch that a global step belongs to, and the number of steps before it in that epoch."""
        return divmod(step, self._batches)

    def batches_of(self, epoch: int) -> Integers:
        """Return the global batches of an epoch: indices of pictures (batches, batch_size), each class side by side."""
        check_count("epoch", epoch, least=0)
        entropy = np.random.SeedSequence((self.seed, epoch))
        rng = np.random.Generator(np.random.PCG64(entropy))
        groups = _fill_up(self._groups, self.classes_per_batch, self._batches, rng)
        classes = _deal(groups, self.classes_per_batch, self._batches, rng)
        pictures = self._pictures_of(classes, groups, rng)
        return pictures.reshape(self._batches, self.batch_size)

    def __iter__(self) -> Iterator[list[Draw]]:
        share = self.batch_size // self.world_size
        mine = slice(self.rank * share, (self.rank + 1) * share)
        epoch, step = self.locate(self.start)
        while True:
            batches = self.batches_of(epoch)
            turns = _occurrence(batches.reshape(-1)).reshape(batches.shape)
            for indices, before in zip(batches[step:, mine].tolist(), turns[step:, mine].tolist(), strict=True):
                yield [Draw(index, epoch, turn) for index, turn in zip(indices, before, strict=True)]
            epoch, step = epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        """Return the global step, for a checkpoint."""
        return {"step": self.start}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue from a checkpoint."""
        check_count("step", state["step"], least=0)
        self.start = state["step"]

    def _pictures_of(self, classes: Integers, groups: Integers, rng: np.random.Generator) -> Integers:
        """Classes (batches, P) -> pictures (batches, P, K).

        The g-th group of a class lies in its pass number g // (groups of a pass), and every pass has a shuffle of its
        own. Inside a pass positions wrap around, which fills the last group with pictures it does not have yet.
        """
        passes = -(-groups // self._groups)
        first_pass = np.cumsum(passes) - passes
        class_of_pass = np.repeat(np.arange(len(passes)), passes)
        lengths = self._sizes[class_of_pass]
        pass_start = np.cumsum(lengths) - lengths
        pass_of_position = np.repeat(np.arange(len(lengths)), lengths)
        class_start = np.cumsum(self._sizes) - self._sizes
        position = np.arange(len(pass_of_position)) - pass_start[pass_of_position]
        pictures = self._members[class_start[class_of_pass[pass_of_position]] + position]
        shuffled = pictures[np.lexsort((rng.random(len(pictures)), pass_of_position))]

        turn, group = np.divmod(_occurrence(classes.reshape(-1)).reshape(classes.shape), self._groups[classes])
        start = pass_start[first_pass[classes] + turn]
        within = group[..., None] * self.per_class + np.arange(self.per_class)
        return shuffled[start[..., None] + within % self._sizes[classes][..., None]]


class ReshapedBatches(ClassBatches):
    """Batches of one size; every epoch draws the number of classes and of pictures per class.

    The shapes are all factorisations of ``batch_size`` with at least two classes, of which there are enough, and two
    pictures per class; the arguments are those of ``ClassBatches``. The number of batches differs between epochs.

    Raises:
        ValueError: If there is no such factorisation.
    """

    def __init__(self, labels: Any, batch_size: int, per_class: int = 4, **settings: Any) -> None:
        super().__init__(labels, batch_size, per_class, **settings)
        counts = [k for k in range(2, batch_size // 2 + 1) if batch_size % k == 0]
        self.shapes = [k for k in counts if batch_size // k <= len(self._sizes)]
        if not self.shapes:
            raise ValueError(
                f"a batch of {batch_size} cannot be reshaped: with {len(self._sizes)} classes there is no way to "
                "divide it into at least two classes of at least two pictures; set another batch_size"
            )
        self._by_shape = {k: ClassBatches(labels, batch_size, k, seed=self.seed) for k in self.shapes}

    def per_class_of(self, epoch: int) -> int:
        """Return the number of pictures per class in the batches of an epoch."""
        rng = np.random.default_rng((self.seed, epoch, self.batch_size))
        return int(rng.choice(self.shapes))

    def steps_per_epoch(self, epoch: int = 0) -> int:
        """Return the number of global batches of an epoch."""
        return self._by_shape[self.per_class_of(epoch)].steps_per_epoch(epoch)

    def locate(self, step: int) -> tuple[int, int]:
        """Return the epoch that a global step belongs to, and the number of steps before it in that epoch."""
        epoch = 0
        while step >= self.steps_per_epoch(epoch):
            step -= self.steps_per_epoch(epoch)
            epoch += 1
        return epoch, step

    def batches_of(self, epoch: int) -> Integers:
        """Return the global batches of an epoch, as ``ClassBatches.batches_of``."""
        return self._by_shape[self.per_class_of(epoch)].batches_of(epoch)


def _codes(labels: Any) -> Integers:
    array = labels.detach().cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        raise ValueError(
            f"labels must be whole numbers of the shape (at least one,), got {array.dtype} {tuple(array.shape)}"
        )
    return np.unique(array, return_inverse=True)[1].astype(np.int64)


def _too_few_classes(classes: int, batch_size: int, per_class: int) -> str:
    enough = next(k for k in range(per_class, batch_size + 1) if batch_size % k == 0 and batch_size // k <= classes)
    return (
        f"a batch of {batch_size} with {per_class} pictures per class needs {batch_size // per_class} classes, got "
        f"{classes}: set batch_size to at most {classes * per_class} or per_class to {enough}"
    )


def _fill_up(groups: Integers, per_batch: int, batches: int, rng: np.random.Generator) -> Integers:
    """Raise the groups per class (C,) to per_batch * batches in all, evenly, none above ``batches``."""
    groups = groups.copy()
    while (missing := per_batch * batches - int(groups.sum())) > 0:
        open_ = np.flatnonzero(groups < batches)
        if missing < len(open_):
            groups[rng.permutation(open_)[:missing]] += 1
        else:
            groups[open_] += min(missing // len(open_), batches - int(groups[open_].max()))
    return groups


def _deal(groups: Integers, per_batch: int, batches: int, rng: np.random.Generator) -> Integers:
    """Deal groups (C,), none above ``batches``, per_batch * batches in all, to rows of distinct classes (batches, P).

    In random order, but a class with as many groups as there are batches left must take part from then on. So there
    are never more groups of a class than batches left, hence always enough classes for the next batch.
    """
    queue = iter(rng.permutation(np.repeat(np.arange(len(groups)), groups)).tolist())
    left_of = groups.tolist()
    by_left: list[dict[int, None]] = [{} for _ in range(batches + 1)]
    for label, count in enumerate(left_of):
        by_left[count][label] = None
    waiting: dict[int, int] = {}  # drawn from the queue for a batch that had the class already: class -> how often
    rows = []
    for batches_left in range(batches, 0, -1):
        batch = dict.fromkeys(by_left[batches_left])
        for label in list(waiting):
            if len(batch) == per_batch:
                break
            if label not in batch:
                waiting[label] -= 1
                if waiting[label] == 0:
                    del waiting[label]
                if left_of[label] > 0:
                    batch[label] = None
        while len(batch) < per_batch:
            label = next(queue)
            if label in batch:
                waiting[label] = waiting.get(label, 0) + 1
            elif left_of[label] > 0:
                batch[label] = None
        for label in batch:
            del by_left[left_of[label]][label]
            left_of[label] -= 1
            by_left[left_of[label]][label] = None
        rows.append(list(batch))
    table = np.array(rows, dtype=np.int64)
    return rng.permuted(table[rng.permutation(batches)], axis=1)  # classes in need came first and late


def _occurrence(values: Integers) -> Integers:
    """Count how often each value (n,) came before its position."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    lengths = np.diff(np.r_[starts, len(values)])
    counts = np.empty_like(values)
    counts[order] = np.arange(len(values)) - np.repeat(starts, lengths)
    return counts
