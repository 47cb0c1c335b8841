"""Base class of all objectives: embeddings and labels -> a loss and values for the log.

    objective(embeddings (B, D), labels (B,), attributes=None, pictures=None) -> Loss(value, parts)

Losses are computed in fp32, or in fp64 for fp64 embeddings, also under autocast: exp(40 * cosine) overflows in bf16.
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

    value: Tensor
    parts: dict[str, Tensor]


@dataclass(frozen=True)
class Hints:
    """How the papers train with an objective. Defaults for a run; nothing here is enforced.

    Attributes:
        per_class: Pictures of each class in a batch.
        rate_multiplier: Learning rate of the objective's own parameters, relative to the model's.
        warm_up: Evaluation intervals in which only the embedding layer and the proxies are trained.
        sharpness: Sharpness of generalized sum pooling.
        needs_classes: Has parameters for each class, so ``classes`` and ``dim`` must be given.
        learning_rate: Of the model, if it differs from the protocol's.
    """

    per_class: int = 4
    rate_multiplier: float = 1.0
    warm_up: int = 0
    sharpness: float = 5.0
    needs_classes: bool = False
    learning_rate: float | None = None


class Objective(nn.Module):
    """A loss of embeddings and labels; subclasses define it in ``compute``.

    Attributes:
        hints: How the papers train with it.
        needs_attributes: Also takes the attributes of the pooling.
        needs_raw: Takes the embeddings before they are normalised.
        settings: Arguments of the constructor, for ``repr`` and copies.
    """

    hints: ClassVar[Hints] = Hints()
    needs_attributes: bool = False
    needs_raw: bool = False

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
        """Compute the loss of a batch.

        Args:
            embeddings: (B, D).
            labels: Classes (B,), int64.
            attributes: (B, m), for objectives that use them.
            pictures: Positions of the pictures in the training set (B,), int64, for objectives that use them.

        Returns:
            The loss and its parts.

        Raises:
            TypeError: If a tensor has the wrong dtype.
            ValueError: If shapes do not match.
        """
        check_vectors("embeddings", embeddings, labels)
        check_pictures(pictures, len(embeddings))
        optional: dict[str, Tensor] = {}  # ``compute`` of a subclass may lack the argument ``pictures``
        if pictures is not None:
            optional["pictures"] = pictures
        with without_autocast(embeddings.device):
            if attributes is not None:
                attributes = precise(attributes)
            return self.compute(precise(embeddings), labels, attributes, **optional)

    def compute(
        self, embeddings: Tensor, labels: Tensor, attributes: Tensor | None, pictures: Tensor | None = None
    ) -> Loss:
        """Compute the loss as ``forward``, of checked tensors in full precision."""
        raise NotImplementedError

    def proxy_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are vectors of classes, without the objective's other parameters."""
        return []

    def extra_repr(self) -> str:
        """Settings in the printed form of the module."""
        return ", ".join(f"{name}={value}" for name, value in self.settings.items())


def check_vectors(name: str, vectors: Tensor, labels: Tensor) -> None:
    """Raise TypeError or ValueError unless vectors are (B, D) and labels are integers (B,)."""
    if not isinstance(vectors, Tensor) or not vectors.is_floating_point():
        raise TypeError(f"{name} must be a floating point tensor, got {_type_name(vectors)}")
    if not _is_integer_tensor(labels):
        raise TypeError(f"the labels of {name} must be a tensor of integers, got {_type_name(labels)}")
    if vectors.dim() != 2 or 0 in vectors.shape:
        raise ValueError(f"{name} must have the shape (at least one, dimensions), got {tuple(vectors.shape)}")
    if labels.shape != vectors.shape[:1]:
        raise ValueError(f"the labels of {name} must have the shape ({len(vectors)},), got {tuple(labels.shape)}")


def check_pictures(pictures: Tensor | None, count: int) -> None:
    """Raise TypeError or ValueError unless pictures are None or integers (count,)."""
    if pictures is None:
        return
    if not _is_integer_tensor(pictures):
        raise TypeError(f"pictures must be a tensor of integers, which picture each is, got {_type_name(pictures)}")
    if pictures.shape != (count,):
        raise ValueError(f"pictures must have the shape ({count},), got {tuple(pictures.shape)}")


def check_labels(labels: Tensor, classes: int) -> None:
    """Raise ValueError unless all labels are classes."""
    is_valid = (labels >= 0) & (labels < classes)
    require(is_valid.all(), f"labels must lie in 0..{classes - 1} for {classes} classes")


def _is_integer_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_floating_point() and value.dtype != torch.bool


def _type_name(value: Any) -> str:
    """The dtype of a tensor, or the type of anything else."""
    if isinstance(value, Tensor):
        return str(value.dtype)
    return type(value).__name__
