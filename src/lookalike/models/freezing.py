"""What trains and how: frozen batch norm, frozen and partly frozen backbones, groups of parameters for the optimiser.

Everything here only ever freezes. A frozen batch norm normalises by the statistics it has and leaves them alone, also
after ``.train()``: a small batch of few classes says little about them.
"""

from typing import Any

from torch import nn

from lookalike._util.checks import check_count, check_range
from lookalike.models.backbone import Backbone

_BATCH_NORMS = nn.modules.batchnorm._BatchNorm
_NORMS = (_BATCH_NORMS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.instancenorm._InstanceNorm)


def freeze_batch_norm(module: nn.Module, *, train_affine: bool = False) -> int:
    """Freeze the statistics of every batch norm in the module, and its scale and shift unless ``train_affine``.

    Returns how many batch norms there are.
    """
    norms = [child for child in module.modules() if isinstance(child, _BATCH_NORMS)]
    for norm in norms:
        norm.eval()
        if _stay_in_eval not in norm._forward_pre_hooks.values():
            norm.register_forward_pre_hook(_stay_in_eval)
        if not train_affine:
            norm.requires_grad_(False)
    return len(norms)


def freeze(module: nn.Module) -> None:
    """Nothing in it trains: no parameter, no statistics of batch norm. Dropout is left to ``.train()``."""
    module.requires_grad_(False)
    freeze_batch_norm(module)


def train_last_stages(backbone: Backbone, count: int) -> None:
    """Freeze all but the last ``count`` of ``backbone.stages()``; 0 freezes the whole backbone."""
    check_count("count", count, least=0)
    stages = backbone.stages()
    if count > len(stages):
        raise ValueError(f"{backbone.name} has {len(stages)} stages, {count} were to be trained")
    frozen = {name for stage in stages[: len(stages) - count] for name in stage}
    for name, module in backbone.named_modules():
        owned = [f"{name}.{parameter}" for parameter, _ in module.named_parameters(recurse=False)]
        if isinstance(module, _BATCH_NORMS) and frozen.issuperset(owned):
            freeze_batch_norm(module)
    for name, parameter in backbone.named_parameters():
        if name in frozen:
            parameter.requires_grad_(False)


def parameter_groups(
    module: nn.Module,
    lr: float,
    *,
    backbone_lr: float = 1.0,
    pooling_lr: float = 1.0,
    weight_decay: float = 0.0,
) -> list[dict[str, Any]]:
    """What trains, for an optimiser: [{"name", "params", "lr", "weight_decay"}, ...], in a fixed order.

    ``backbone_lr`` and ``pooling_lr`` multiply ``lr`` for an Embedder's backbone and for the pooling of its head;
    a Head alone is as good. Norms, biases and single numbers are not decayed. The papers' weight decay is coupled
    (``torch.optim.Adam``, not ``AdamW``).
    """
    check_range("lr", lr, 0, None)
    check_range("backbone_lr", backbone_lr, 0, None)
    check_range("pooling_lr", pooling_lr, 0, None)
    if weight_decay:
        check_range("weight_decay", weight_decay, 0, None)
    norms = {id(p) for child in module.modules() if isinstance(child, _NORMS) for p in child.parameters(recurse=False)}
    factors = {"backbone": backbone_lr, "pooling": pooling_lr, "head": 1.0}
    groups: dict[tuple[str, bool], dict[str, Any]] = {
        (part, decayed): {
            "name": part if decayed else f"{part}, not decayed",
            "params": [],
            "lr": lr * factor,
            "weight_decay": weight_decay if decayed else 0.0,
        }
        for part, factor in factors.items()
        for decayed in (True, False)
    }
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            groups[_part(name), parameter.dim() > 1 and id(parameter) not in norms]["params"].append(parameter)
    chosen = [group for group in groups.values() if group["params"]]
    if not chosen:
        raise ValueError("nothing trains: every parameter is frozen")
    return chosen


def _part(name: str) -> str:
    if name.startswith("backbone."):
        return "backbone"
    return "pooling" if name.removeprefix("head.").startswith("pooling.") else "head"


def _stay_in_eval(norm: nn.Module, _: Any) -> None:
    """A hook, not a method put over ``train``: it is copied, pickled and wrapped along with the module."""
    if norm.training:
        norm.training = False
