"""The authors' start of the prototypes: from data, once the network has something to say.

While it lasts, the averages of the bags seen in training are collected, clipped to the unit ball; when the memory
is full, greedy k-centre chooses the prototypes among them. How far this has come is part of the state dict.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lookalike._util.checks import check_count
from lookalike.geometry import clip, greedy_k_centre


class WarmUp(nn.Module):
    """A memory of ``size`` vectors of ``dim`` that ends in ``num_prototypes`` prototypes, after ``delay`` steps."""

    memory: Tensor
    progress: Tensor

    def __init__(self, dim: int, num_prototypes: int, size: int, delay: int) -> None:
        super().__init__()
        check_count("memory", size)
        check_count("delay", delay, least=0)
        if size < num_prototypes:
            raise ValueError(f"memory must hold at least the {num_prototypes} prototypes, got {size}")
        self.num_prototypes, self.size, self.delay = num_prototypes, size, delay
        self.register_buffer("memory", torch.zeros(size, dim))
        # Steps waited and vectors stored. The plain integers are what the code reads: no sync, nothing to trace.
        self.register_buffer("progress", torch.zeros(2, dtype=torch.int64))
        self._waited = self._stored = 0
        self.register_load_state_dict_post_hook(_read_progress)

    @property
    def done(self) -> bool:
        return self._stored >= self.size

    @torch.no_grad()
    def observe(self, averages: Tensor) -> Tensor | None:
        """Take in the averages (B, D) of a training batch; the prototypes (m, D) once the memory is full.

        Under torch.distributed every rank stores the vectors of all ranks, in the same order.
        """
        if self._waited < self.delay:
            self._write_progress(self._waited + 1, self._stored)
            return None
        new = _from_all_ranks(clip(averages.detach().to(self.memory)))[: self.size - self._stored]
        self.memory[self._stored : self._stored + len(new)] = new
        self._write_progress(self._waited, self._stored + len(new))
        if not self.done:
            return None
        chosen = self.memory[greedy_k_centre(self.memory, self.num_prototypes).indices]
        if _many_ranks():
            dist.broadcast(chosen, src=0)  # equal memories, but not every device rounds distances alike
        return chosen

    def finish(self) -> None:
        """The prototypes came from elsewhere."""
        self._write_progress(self._waited, self.size)

    def _write_progress(self, waited: int, stored: int) -> None:
        self._waited, self._stored = waited, stored
        self.progress.copy_(torch.tensor([waited, stored]))


def _read_progress(module: WarmUp, _: object) -> None:
    module._waited, module._stored = module.progress.tolist()


def _many_ranks() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _from_all_ranks(vectors: Tensor) -> Tensor:
    """Vectors (B, D) of this rank -> those of all ranks, rank by rank; the ranks may differ in B."""
    if not _many_ranks():
        return vectors
    length = torch.tensor([len(vectors)], device=vectors.device)
    lengths = [torch.empty_like(length) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, length)
    longest = max(int(count) for count in lengths)
    padded = vectors.new_zeros(longest, vectors.shape[1])
    padded[: len(vectors)] = vectors
    gathered = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(gathered, padded)
    return torch.cat([part[: int(count)] for part, count in zip(gathered, lengths, strict=True)])
