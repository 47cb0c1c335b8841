"""The optimiser of a run: backbone, head, pooling, the loss's own parameters and label embeddings, each at its rate.

Proxies have a rate of their own because their papers give them one, up to 100 times the model's; no paper does so for
the label embeddings of the zero-shot loss.
"""

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from lookalike.models import parameter_groups
from lookalike.objectives import ZeroShot
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
    labels = [part.label_embeddings for part in objective.modules() if isinstance(part, ZeroShot)]
    own = [parameter for parameter in objective.parameters() if not any(parameter is label for label in labels)]
    for name, parameters, multiple in (("loss", own, settings.proxy_lr), ("labels", labels, settings.label_lr)):
        if parameters:
            rate = settings.lr * multiple
            groups.append({"name": name, "params": parameters, "lr": rate, "weight_decay": 0.0, "waits": False})
    if settings.optimiser == "sgd":
        return SGD(groups, lr=settings.lr, momentum=settings.betas[0])
    return {"adam": Adam, "adamw": AdamW}[settings.optimiser](groups, lr=settings.lr, betas=settings.betas)
