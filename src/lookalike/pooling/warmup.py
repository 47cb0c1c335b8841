"""The authors' initialisation of prototypes (GSP, OTP): greedy k-centre among averages of training bags."""

from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lookalike._util.checks import check_count
from lookalike.geometry import clip, greedy_k_centre

PrototypeInit = Literal["random", "k-centre", "k-centre-released"]


def create_warm_up(init: PrototypeInit, dim: int, num_prototypes: int, memory: int, delay: int) -> "WarmUp | None":
    """Create the warm-up of an initialisation; None for "random".

    Raises:
        ValueError: If there is no such initialisation, or the memory is too small.
    """
    if init not in get_args(PrototypeInit):
        raise ValueError(f"init must be one of {', '.join(get_args(PrototypeInit))}, got {init!r}")
    if init == "random":
        return None
    return WarmUp(dim, num_prototypes, memory, delay, seeded=init == "k-centre-released")


class WarmUp(nn.Module):
    """Collects averages of bags, clipped to the unit ball, until it can choose prototypes among them.

    The progress is in the state dict.

    Args:
        dim: Size D of the local features.
        num_prototypes: Number of prototypes m.
        size: Number of averages to collect.
        delay: Training steps to wait before collecting.
        seeded: The first m averages only seed the distances, as in the authors' code; the prototypes are chosen
            among the others.
    """

    memory: Tensor
    progress: Tensor

    def __init__(self, dim: int, num_prototypes: int, size: int, delay: int, *, seeded: bool = False) -> None:
        super().__init__()
        check_count("memory", size)
        check_count("delay", delay, least=0)
        least = 2 * num_prototypes if seeded else num_prototypes
        if size < least:
            raise ValueError(f"memory must hold at least {least} averages for {num_prototypes} prototypes, got {size}")
        self.num_prototypes, self.size, self.delay, self.seeded = num_prototypes, size, delay, seeded
        self.register_buffer("memory", torch.zeros(size, dim))
        # Steps waited and vectors stored. The code reads the integers below, without device sync or tracing.
        self.register_buffer("progress", torch.zeros(2, dtype=torch.int64))
        self._waited = self._stored = 0
        self.register_load_state_dict_post_hook(_read_progress)

    @property
    def done(self) -> bool:
        """Whether the memory is full."""
        return self._stored >= self.size

    def collect(self, averages: Tensor) -> Tensor | None:
        """Call ``observe``, outside of the graph if the model is compiled."""
        observe = self.observe
        if torch.compiler.is_compiling():
            observe = torch.compiler.disable(observe)  # as a decorator it would import the compiler
        return observe(averages)

    @torch.no_grad()
    def observe(self, averages: Tensor) -> Tensor | None:
        """Store the averages of a training batch. Under torch.distributed every rank stores those of all ranks.

        Args:
            averages: (B, D).

        Returns:
            The prototypes (m, D) once the memory is full, else None.
        """
        if self._waited < self.delay:
            self._write_progress(self._waited + 1, self._stored)
            return None
        averages = _from_all_ranks(clip(averages.detach().to(self.memory)))[: self.size - self._stored]
        self.memory[self._stored : self._stored + len(averages)] = averages
        self._write_progress(self._waited, self._stored + len(averages))
        if not self.done:
            return None
        seeds, candidates = None, self.memory
        if self.seeded:
            seeds, candidates = self.memory[: self.num_prototypes], self.memory[self.num_prototypes :]
        prototypes = candidates[greedy_k_centre(candidates, self.num_prototypes, seeds).indices]
        if _many_ranks():
            dist.broadcast(prototypes, src=0)  # devices may round the distances differently
        return prototypes

    def finish(self) -> None:
        """Stop collecting, because the prototypes have been set in another way."""
        self._write_progress(self._waited, self.size)

    def _write_progress(self, waited: int, stored: int) -> None:
        self._waited, self._stored = waited, stored
        self.progress.copy_(torch.tensor([waited, stored]))


def _read_progress(module: WarmUp, _: object) -> None:
    module._waited, module._stored = module.progress.tolist()


def _many_ranks() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _from_all_ranks(vectors: Tensor) -> Tensor:
    """Gather the vectors (B, D) of all ranks, in the order of the ranks, which may differ in B."""
    if not _many_ranks():
        return vectors
    length = torch.tensor([len(vectors)], device=vectors.device)
    lengths = [torch.empty_like(length) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, length)
    counts = torch.cat(lengths).tolist()
    padded = vectors.new_zeros(max(counts), vectors.shape[1])
    padded[: len(vectors)] = vectors
    gathered = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(gathered, padded)
    return torch.cat([rows[:count] for rows, count in zip(gathered, counts, strict=True)])
