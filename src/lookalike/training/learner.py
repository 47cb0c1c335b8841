"""Model and loss as one module, so that DDP takes care of the gradients of both."""

import torch
from torch import Tensor, nn

from lookalike.models import Embedder
from lookalike.models.backbone import in_eval_mode
from lookalike.models.embedder import Head
from lookalike.objectives import BetweenSamples, Gathered, Loss
from lookalike.objectives.base import precise
from lookalike.objectives.gather import gather_with_gradient, world_size
from lookalike.training.evaluation import join_shares


class Learner(nn.Module):
    """A batch of inputs -> its loss. model: an Embedder for pictures, or its head alone for their local features."""

    def __init__(self, model: Embedder | Head, objective: Gathered) -> None:
        super().__init__()
        self.model: Embedder | Head = model
        self.objective = objective
        # in a list, or torch would count them among the parts twice
        self._comparing = [part for part in objective.modules() if isinstance(part, BetweenSamples)]

    def forward(self, inputs: Tensor, labels: Tensor, pictures: Tensor, samples: Tensor | None = None) -> Loss:
        """samples: inputs of this process's share of ``BetweenSamples.places``, as ``evaluation.share`` deals them."""
        joined = inputs if samples is None else torch.cat((inputs, samples))
        if isinstance(self.model, Embedder):
            head, tokens = self.model.head, self.model.backbone(joined)  # together, for batch norm
        else:
            head, tokens = self.model, joined
        for comparing in self._comparing:
            with in_eval_mode(head.pooling):  # prototypes that start from data start from what batches bring
                own = head(tokens[len(inputs) :])
            comparing.see(_of_all(own, len(comparing.places)))
        if not self.objective.objective.needs_attributes:
            return self.objective(head(tokens[: len(inputs)]), labels, None, pictures)
        pooled = head(tokens[: len(inputs)], details=True)
        return self.objective(pooled.vector, labels, pooled.attributes, pictures)


def _of_all(own: Tensor, count: int) -> Tensor:
    """The vectors of the samples that each process has seen, in order; gradients go to whoever saw them."""
    if world_size() == 1:
        return own
    return join_shares(gather_with_gradient(precise(own)).unflatten(0, (world_size(), -1)), count)
