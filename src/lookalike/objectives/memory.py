"""A cross-batch memory: a pair loss also compares the batch with embeddings of earlier batches.

    loss = l(batch, batch) + weight * l(batch, memory)

The model changes slowly, so embeddings of some hundred steps ago are still good references. The memory is a ring
buffer: new embeddings, detached, replace the oldest. Reference: Wang et al., "Cross-Batch Memory for Embedding
Learning", CVPR 2020. There are two forms:

    official   As released by the authors. The memory is filled after ``start_after`` steps of the plain loss. The batch
               enters the memory first. Once the memory is full, the batch is compared with all of it, its own copies
               included. A memory of L batches is first used in step ``start_after`` + L, counted from 1. With c1 and c2
               a copy at similarity 1 is no active pair; other losses count it as a positive.
    distinct   Every pair counts once. The memory is filled from the first step and used after ``start_after`` steps.
               The batch is compared first and enters afterwards. A picture does not meet its own older embedding.

With several processes, ``Gathered(CrossBatchMemory(...))`` sees the joined batch: every rank holds the same memory and
gets the loss that one process would have. Without ``Gathered``, each rank stores ``size`` embeddings of its own share
of the batches. The memories then differ, and each rank has to save its own. The memory is in the state dict, but it is
no buffer: DDP, and so Fabric, sends the buffers of rank 0 to all ranks at every step. That would overwrite different
memories, and send equal ones (23 MB for 44,800 vectors of 128) needlessly.
"""

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from lookalike._util.checks import check_count, check_range
from lookalike.objectives.base import Loss, Objective
from lookalike.objectives.pairs import PairObjective
from lookalike.objectives.presets import MEMORY_STARTS_AFTER

Form = Literal["official", "distinct"]
UNKNOWN = -1  # stored if the picture of an embedding is not known


class CrossBatchMemory(Objective):
    """A pair loss in the batch plus the same loss against a memory.

    In eval mode the loss is the same, but nothing is stored. Position and fill of the ring are plain numbers that
    follow from the batch sizes alone, so nothing waits for a GPU.

    Args:
        objective: The pair loss.
        dim: Size of the embeddings.
        size: Number of embeddings in the memory.
        form: "official" or "distinct", see the module.
        start_after: Steps of the plain loss first; a step is a batch seen in training mode.
        weight: Weight of the loss against the memory, relative to that in the batch.
        match_itself: With the form "distinct", a picture is a positive of its own older embedding. If False, this form
            needs ``pictures``.

    Examples:
        >>> from lookalike.objectives import create
        >>> loss = CrossBatchMemory(create("c1"), dim=8, size=100, form="distinct")
        >>> for step in range(3):
        ...     parts = loss(torch.randn(4, 8), torch.tensor([0, 0, 1, 1]), pictures=torch.arange(4) + 4 * step).parts
        >>> f"{parts['memory fill']:.2f}", loss.fill
        ('0.08', 12)
    """

    def __init__(
        self,
        objective: Objective,
        dim: int,
        size: int,
        *,
        form: Form = "official",
        start_after: int = 0,
        weight: float = 1.0,
        match_itself: bool = False,
    ) -> None:
        if not isinstance(objective, PairObjective):
            kind = type(objective).__name__
            raise TypeError(f"a memory needs a loss on pairs, as contrastive or multi-similarity, got {kind}")
        check_count("dim", dim)
        check_count("size", size)
        check_count("start_after", start_after, 0)
        check_range("weight", weight, 0, None)
        if form not in get_args(Form):
            raise ValueError(f"form must be 'official' or 'distinct', got {form!r}")
        super().__init__(
            dim=dim, size=size, form=form, start_after=start_after, weight=weight, match_itself=match_itself
        )
        self.objective = objective
        self.dim = dim
        self.size = size
        self.form = form
        self.start_after = start_after
        self.weight = weight
        self.match_itself = match_itself
        self.embeddings = torch.zeros(size, dim)
        self.labels = torch.zeros(size, dtype=torch.long)
        self.pictures = torch.full((size,), UNKNOWN)
        self.position = 0  # index of the next embedding
        self.fill = 0
        self.steps = 0

    def compute(
        self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None, pictures: Tensor | None = None
    ) -> Loss:
        """Compute the loss of a checked batch, as ``forward``."""
        if embeddings.shape[1] != self.dim:
            raise ValueError(f"embeddings must have {self.dim} dimensions as the memory, got {embeddings.shape[1]}")
        if pictures is None and self.form == "distinct" and not self.match_itself:
            raise ValueError("a memory must know who is who: give pictures (B,), or match_itself=True")
        self._move_to(embeddings)
        value, parts = self.objective(embeddings, labels, attributes, pictures)
        is_official = self.form == "official"
        is_late_enough = self.steps >= self.start_after
        if self.training and is_official:
            self._remember(embeddings, labels, pictures)
        share_filled = embeddings.new_full((), self.fill / self.size)
        parts = {**parts, "memory": torch.zeros_like(share_filled), "memory fill": share_filled}
        needed = self.size if is_official else 1
        if is_late_enough and self.fill >= needed:
            against = self._compare(embeddings, labels, pictures)
            value = value + self.weight * against.value
            parts["memory"] = against.value.detach()
            parts.update({f"memory/{name}": figure for name, figure in against.parts.items()})
        if self.training and not is_official:
            self._remember(embeddings, labels, pictures)
        return Loss(value, parts)

    def proxy_parameters(self) -> list[nn.Parameter]:
        """Return the vectors that stand for classes."""
        return self.objective.proxy_parameters()

    def get_extra_state(self) -> dict[str, Any]:
        """Return the memory for the state dict: three tensors and three numbers."""
        tensors = {"embeddings": self.embeddings, "labels": self.labels, "pictures": self.pictures}
        return {**tensors, "position": self.position, "fill": self.fill, "steps": self.steps}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the state of ``get_extra_state``."""
        if state["embeddings"].shape != self.embeddings.shape:
            expected = tuple(self.embeddings.shape)
            actual = tuple(state["embeddings"].shape)
            raise ValueError(f"the saved memory must have (size, dim) = {expected} as this one, got {actual}")
        self.embeddings = state["embeddings"].to(self.embeddings.device, copy=True)
        self.labels = state["labels"].to(self.labels, copy=True)
        self.pictures = state["pictures"].to(self.pictures, copy=True)
        self.position = state["position"]
        self.fill = state["fill"]
        self.steps = state["steps"]

    def _compare(self, embeddings: Tensor, labels: Tensor, pictures: Tensor | None) -> Loss:
        """Compare with the memory, newest first, because some losses use the first positive only.

        Indexing copies, so that the backward pass still has what later batches overwrite.
        """
        order = (self.position - 1 - torch.arange(self.fill, device=embeddings.device)) % self.size
        same = None
        if pictures is not None and self.form == "distinct" and not self.match_itself:
            same = pictures.unsqueeze(1) == self.pictures[order]
        return self.objective.pairwise(embeddings, labels, self.embeddings[order], self.labels[order], same)

    @torch.no_grad()
    def _remember(self, embeddings: Tensor, labels: Tensor, pictures: Tensor | None) -> None:
        self.steps += 1
        if self.form == "official" and self.steps <= self.start_after:
            return
        count = min(len(embeddings), self.size)  # the last ones, if the batch is larger than the memory
        slots = (self.position + torch.arange(count, device=embeddings.device)) % self.size
        self.embeddings[slots] = embeddings[-count:]
        self.labels[slots] = labels[-count:].to(self.labels.dtype)
        if pictures is None:
            self.pictures[slots] = UNKNOWN
        else:
            self.pictures[slots] = pictures[-count:].to(self.pictures.dtype)
        self.position = (self.position + count) % self.size
        self.fill = min(self.fill + count, self.size)

    def _move_to(self, embeddings: Tensor) -> None:
        """Move to the device and dtype of the embeddings, so that copies of embeddings are exact."""
        self.embeddings = self.embeddings.to(embeddings)
        self.labels = self.labels.to(embeddings.device)
        self.pictures = self.pictures.to(embeddings.device)


def size_in_batches(batches: int, batch_size: int) -> int:
    """Return the number of embeddings in some batches. Inside ``Gathered``, batch_size is that of the joined batch."""
    check_count("batches", batches)
    check_count("batch_size", batch_size)
    return batches * batch_size


def with_memory(
    objective: Objective,
    dim: int,
    batches: int,
    batch_size: int,
    *,
    form: Form = "official",
    start_after: int = MEMORY_STARTS_AFTER,
    weight: float = 1.0,
    match_itself: bool = False,
) -> CrossBatchMemory:
    """Add a memory of ``batches`` batches to a pair loss, as in the papers.

    ``lookalike.objectives.presets.MEMORY_BATCHES`` has their sizes for the benchmarks. The other arguments are those of
    ``CrossBatchMemory``. The official form is first used in step ``start_after + batches``, counted from 1.
    """
    size = size_in_batches(batches, batch_size)
    return CrossBatchMemory(
        objective, dim, size, form=form, start_after=start_after, weight=weight, match_itself=match_itself
    )
