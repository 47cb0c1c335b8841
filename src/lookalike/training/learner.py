"""Model and loss as one module, so that DDP averages the gradients of both."""

import torch
from torch import Tensor, nn

from lookalike.models import Embedder
from lookalike.models.backbone import in_eval_mode
from lookalike.models.embedder import Head
from lookalike.objectives import BetweenSamples, Gathered, Loss, Objective
from lookalike.objectives.gather import gather_with_gradient, world_size
from lookalike.pooling.autograd import precise
from lookalike.training.features import join_shares


class Learner(nn.Module):
    """Computes the loss of a batch.

    Args:
        model: An Embedder for pictures, or its head for their local features.
        objective: Loss; it sees the joined batches of all processes.
    """

    def __init__(self, model: Embedder | Head, objective: Objective) -> None:
        super().__init__()
        self.model: Embedder | Head = model
        self.objective = Gathered(objective)
        # In a list, so that torch does not register them a second time.
        self._sample_losses = [module for module in objective.modules() if isinstance(module, BetweenSamples)]

    def forward(
        self,
        inputs: Tensor,
        labels: Tensor,
        positions: Tensor | None = None,
        samples: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Loss:
        """Compute the loss.

        Args:
            inputs: Pictures (B, 3, H, W) or local features (B, N, C).
            labels: Classes (B,).
            positions: Positions of the pictures in the training set (B,), for losses with a memory or samples.
            samples: Inputs of this process's share of the samples that CCP compares with.
            mask: Local features (B, N) that are pooled; None: all.

        Returns:
            The loss and its parts.
        """
        tokens = inputs
        if samples is not None:
            tokens = torch.cat((inputs, samples))
        head = self.model
        if isinstance(head, Embedder):
            tokens = head.backbone(tokens)  # batch and samples together, for batch norm
            head = head.head
        for sample_loss in self._sample_losses:
            with in_eval_mode(head.pooling):  # samples must not count for prototypes that start from batches
                own_share = head(tokens[len(inputs) :])
            sample_loss.see(_gather(own_share, len(sample_loss.places)))
        tokens = tokens[: len(inputs)]
        if not self.objective.objective.needs_attributes:
            return self.objective(head(tokens, mask), labels, None, positions)
        pooled = head(tokens, mask, details=True)
        return self.objective(pooled.vector, labels, pooled.attributes, positions)


def _gather(own_share: Tensor, count: int) -> Tensor:
    """Vectors of the samples of all processes in order; gradients flow back to the process that computed them."""
    if world_size() == 1:
        return own_share
    return join_shares(gather_with_gradient(precise(own_share)).unflatten(0, (world_size(), -1)), count)
