"""The optimiser of a run: backbone, head, pooling and the loss's own parameters, each at its rate."""

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from lookalike.models import parameter_groups
from lookalike.training.settings import Settings


def create_optimiser(model: nn.Module, objective: nn.Module, settings: Settings) -> Optimizer:
    """Groups by name; those of the backbone have ``waits=True``, for ``Rates``."""
    assert settings.lr is not None
    assert settings.proxy_lr is not None
    groups = parameter_groups(
        model,
        settings.lr,
        backbone_lr=settings.backbone_lr,
        pooling_lr=settings.pooling_lr,
        weight_decay=settings.weight_decay,
    )
    for group in groups:
        group["waits"] = group["name"].startswith("backbone")
    own = list(objective.parameters())
    if own:
        rate = settings.lr * settings.proxy_lr
        groups.append({"name": "loss", "params": own, "lr": rate, "weight_decay": 0.0, "waits": False})
    if settings.optimiser == "sgd":
        return SGD(groups, lr=settings.lr, momentum=settings.betas[0])
    return {"adam": Adam, "adamw": AdamW}[settings.optimiser](groups, lr=settings.lr, betas=settings.betas)
