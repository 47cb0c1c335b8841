"""What every objective is: vectors and labels go in, one number to be made small comes out, and figures for the log.

    objective(embeddings (B, D), labels (B,), attributes=None, pictures=None) -> Loss(value, parts)

Computed in fp32 (fp64 for fp64 embeddings), also under autocast: exponents of 40 times a cosine are no place for bf16.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from lookalike._util.tensor_checks import require
from lookalike.pooling.autograd import precise, without_autocast


class Loss(NamedTuple):
    """The result of an objective.

    Attributes:
        value: Scalar, differentiable.
        parts: Scalars for the log, detached.
    """

    value: Tensor  # scalar, differentiable
    parts: dict[str, Tensor]  # scalars for the log, detached


@dataclass(frozen=True)
class Hints:
    """How the papers train with an objective. Suggestions for whoever sets up the run; nothing here is enforced."""

    per_class: int = 4  # pictures of each class in a batch
    rate_multiplier: float = 1.0  # learning rate of the objective's own parameters, relative to the model's
    warm_up: int = 0  # evaluation intervals in which only the embedding layer and the proxies are trained
    sharpness: float = 5.0  # of generalized sum pooling
    needs_classes: bool = False  # has parameters for each class: ``classes`` and ``dim`` must be given
    learning_rate: float | None = None  # of the model, where it differs from the protocol's


class Objective(nn.Module):
    """Holds the settings and opens the door: a subclass says in ``compute`` what the loss is."""

    hints: ClassVar[Hints] = Hints()
    needs_attributes: bool = False  # the pooling's, beside the embeddings
    needs_raw: bool = False  # the embeddings before they are normalised

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        attributes: Tensor | None = None,
        pictures: Tensor | None = None,
    ) -> Loss:
        """Embeddings (B, D), labels (B,) int64 and, for objectives that look at them, attributes (B, m) and pictures.

        pictures: (B,) int64, which picture each is, as by its place in the training set.
        """
        check_vectors("embeddings", embeddings, labels)
        check_pictures(pictures, len(embeddings))
        known = {} if pictures is None else {"pictures": pictures}  # so that a compute without them will do
        with without_autocast(embeddings.device):
            attributes = None if attributes is None else precise(attributes)
            return self.compute(precise(embeddings), labels, attributes, **known)

    def compute(
        self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None, pictures: Tensor | None = None
    ) -> Loss:
        """As ``forward``, of tensors that were checked, in full precision."""
        raise NotImplementedError

    def proxy_parameters(self) -> list[nn.Parameter]:
        """The vectors that stand for classes. Other parameters of an objective are not among them."""
        return []

    def extra_repr(self) -> str:
        """Settings in the printed form of the module."""
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())


def check_vectors(name: str, vectors: Tensor, labels: Tensor) -> None:
    """Raise TypeError or ValueError unless vectors are (B, D) and labels are integers (B,)."""
    if not isinstance(vectors, Tensor) or not vectors.is_floating_point():
        kind = vectors.dtype if isinstance(vectors, Tensor) else type(vectors).__name__
        raise TypeError(f"{name} must be a floating point tensor, got {kind}")
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dtype == torch.bool:
        kind = labels.dtype if isinstance(labels, Tensor) else type(labels).__name__
        raise TypeError(f"the labels of {name} must be a tensor of integers, got {kind}")
    if vectors.dim() != 2 or 0 in vectors.shape:
        raise ValueError(f"{name} must have the shape (at least one, dimensions), got {tuple(vectors.shape)}")
    if labels.shape != vectors.shape[:1]:
        raise ValueError(f"the labels of {name} must have the shape ({len(vectors)},), got {tuple(labels.shape)}")


def check_pictures(pictures: Tensor | None, count: int) -> None:
    """Raise TypeError or ValueError unless pictures are None or integers (count,)."""
    if pictures is None:
        return
    if not isinstance(pictures, Tensor) or pictures.is_floating_point() or pictures.dtype == torch.bool:
        kind = pictures.dtype if isinstance(pictures, Tensor) else type(pictures).__name__
        raise TypeError(f"pictures must be a tensor of integers, which picture each is, got {kind}")
    if pictures.shape != (count,):
        raise ValueError(f"pictures must have the shape ({count},), got {tuple(pictures.shape)}")


def check_labels(labels: Tensor, classes: int) -> None:
    """Raise ValueError unless all labels are classes."""
    require(((labels >= 0) & (labels < classes)).all(), f"labels must lie in 0..{classes - 1} for {classes} classes")
