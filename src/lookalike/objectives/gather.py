"""One loss over the joined batch of all processes, with the gradients that one process would have.

Every rank gathers the vectors of all W ranks and computes the same loss L of the joined batch and of the objective's
own parameters (proxies). Gradients:

    proxies  Every rank has the complete dL/dproxies. Averaging equal gradients changes nothing, so the objective may be
             wrapped in DDP or not.
    model    A rank has gradients for its own share of the pictures only. The sum over the ranks is the whole gradient,
             but DDP takes the mean. So the gradient that enters the own share is multiplied by W. The loss is not
             multiplied, and is equal on every rank.

The backward pass needs no communication. Without torch.distributed, this is the objective itself.
"""

from typing import Any

import torch
from torch import Tensor, distributed, nn

from lookalike._util.tensor_checks import require
from lookalike.objectives.base import Loss, Objective, check_pictures, check_vectors
from lookalike.pooling.autograd import precise


class Gathered(nn.Module):
    """An objective on the joined batch of all processes. The model's gradients must be averaged over them, as DDP does.

    Every process needs the same number of pictures and the same proxies at the start. Call ``synchronise`` before
    training, or use the same seed everywhere.

    Args:
        objective: Loss of the joined batch.
    """

    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.objective = objective

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        attributes: Tensor | None = None,
        pictures: Tensor | None = None,
    ) -> Loss:
        """Compute the loss of the batch gathered from all processes."""
        if world_size() == 1:
            return self.objective(embeddings, labels, attributes, pictures)
        check_vectors("embeddings", embeddings, labels)
        check_pictures(pictures, len(embeddings))
        _check_even(embeddings)
        embeddings = gather_with_gradient(precise(embeddings))
        if attributes is not None:
            attributes = gather_with_gradient(precise(attributes))
        if pictures is not None:
            pictures = gather(pictures)
        return self.objective(embeddings, gather(labels), attributes, pictures)

    def proxy_parameters(self) -> list[nn.Parameter]:
        """Return the vectors that stand for classes."""
        return self.objective.proxy_parameters()

    @torch.no_grad()
    def synchronise(self) -> None:
        """Give every rank the parameters and buffers of rank 0."""
        if world_size() > 1:
            for tensor in (*self.objective.parameters(), *self.objective.buffers()):
                distributed.broadcast(tensor.data, 0)

    @torch.no_grad()
    def average_gradients(self) -> None:
        """Average the gradients of the proxies over the processes, after the backward pass, if DDP does not.

        They differ only by rounding. Averaging keeps these differences from adding up.
        """
        if world_size() > 1:
            for parameter in self.objective.parameters():
                if parameter.grad is not None:
                    distributed.all_reduce(parameter.grad)
                    parameter.grad /= world_size()


def world_size() -> int:
    """Return the number of processes, 1 without distributed training."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    return 1


def gather(values: Tensor) -> Tensor:
    """Join the tensors (B, ...) of all W processes to (W B, ...), in the order of the ranks, without gradients."""
    values = values.detach().contiguous()
    shares = [torch.empty_like(values) for _ in range(world_size())]
    distributed.all_gather(shares, values)
    return torch.cat(shares)


def gather_with_gradient(values: Tensor) -> Tensor:
    """Join as ``gather``; the backward pass returns W times the gradient of the own share, which DDP averages."""
    joined: Tensor = _Gather.apply(values)
    return joined


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.start = distributed.get_rank() * len(values)
        ctx.length = len(values)
        return gather(values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return world_size() * gradient.narrow(0, ctx.start, ctx.length)


def _check_even(values: Tensor) -> None:
    sizes = gather(torch.tensor([len(values)], device=values.device))
    require(
        (sizes == len(values)).all(),
        f"every process must bring equally many pictures to a batch, here are {len(values)} and elsewhere others",
    )
