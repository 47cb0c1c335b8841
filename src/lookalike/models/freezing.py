"""What trains: frozen batch norm, frozen and partly frozen backbones, groups of parameters for the optimizer.

These functions only freeze, they never unfreeze. A frozen batch norm uses its running statistics and does not update
them, also after ``.train()``: a small batch of few classes says little about them.
"""

from typing import Any

from torch import nn

from lookalike._util.checks import check_count, check_range
from lookalike.models.backbone import Backbone

_BATCH_NORMS = nn.modules.batchnorm._BatchNorm
_NORMS = (_BATCH_NORMS, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.modules.instancenorm._InstanceNorm)
_SCALARS = "pooling, single numbers"


def freeze_batch_norm(module: nn.Module, *, train_affine: bool = False) -> int:
    """Freeze the statistics of every batch norm in a module.

    Args:
        module: Changed in place.
        train_affine: Let scale and shift train.

    Returns:
        The number of batch norms.
    """
    count = 0
    for norm in module.modules():
        if not isinstance(norm, _BATCH_NORMS):
            continue
        count += 1
        norm.eval()
        if _stay_in_eval not in norm._forward_pre_hooks.values():
            norm.register_forward_pre_hook(_stay_in_eval)
        if not train_affine:
            norm.requires_grad_(False)
    return count


def freeze(module: nn.Module) -> None:
    """Freeze all parameters and batch norm statistics of a module. Dropout still follows ``.train()``."""
    module.requires_grad_(False)
    freeze_batch_norm(module)


def train_last_stages(backbone: Backbone, count: int) -> None:
    """Freeze all but the last stages of a backbone.

    Args:
        backbone: Changed in place.
        count: How many of ``backbone.stages()`` train; 0 freezes all.

    Raises:
        ValueError: If the backbone has fewer stages.
    """
    check_count("count", count, least=0)
    stages = backbone.stages()
    if count > len(stages):
        raise ValueError(f"{backbone.name} has {len(stages)} stages, {count} were to be trained")
    frozen: set[str] = set()
    frozen.update(*stages[: len(stages) - count])
    for path, module in backbone.named_modules():
        parameters = [f"{path}.{name}" for name, _ in module.named_parameters(recurse=False)]
        if isinstance(module, _BATCH_NORMS) and frozen.issuperset(parameters):
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
    scalar_lr: float | None = None,
    weight_decay: float = 0.0,
    decay_all: bool = False,
) -> list[dict[str, Any]]:
    """Divide the parameters that train into groups for an optimizer.

    Norms, biases and single numbers get no weight decay. The papers' weight decay is coupled (``torch.optim.Adam``,
    not ``AdamW``).

    Args:
        module: An ``Embedder``, or a ``Head``.
        lr: Learning rate.
        backbone_lr: Factor of ``lr`` for the backbone.
        pooling_lr: Factor of ``lr`` for the pooling.
        scalar_lr: Factor of ``lr`` for single numbers of the pooling; None: as the rest of it.
        weight_decay: For the parameters that have any.
        decay_all: Decay everything but batch norm: other norms, biases and single numbers, too.

    Returns:
        Groups {"name", "params", "lr", "weight_decay"} in a fixed order, without empty ones.

    Raises:
        ValueError: If nothing trains, or a rate is out of bounds.
    """
    check_range("lr", lr, 0, None)
    check_range("backbone_lr", backbone_lr, 0, None)
    check_range("pooling_lr", pooling_lr, 0, None)
    if scalar_lr is not None:
        check_range("scalar_lr", scalar_lr, 0, None)
    if weight_decay:
        check_range("weight_decay", weight_decay, 0, None)
    groups: dict[tuple[str, bool], dict[str, Any]] = {}
    sections = [("backbone", backbone_lr), ("pooling", pooling_lr), (_SCALARS, scalar_lr or pooling_lr), ("head", 1.0)]
    for section, factor in sections:
        decayed = {"name": section, "params": [], "lr": lr * factor, "weight_decay": weight_decay}
        groups[section, True] = decayed
        groups[section, False] = {**decayed, "name": f"{section}, not decayed", "params": [], "weight_decay": 0.0}
    norm_parameters: set[int] = set()
    for child in module.modules():
        if isinstance(child, _BATCH_NORMS if decay_all else _NORMS):
            norm_parameters.update(map(id, child.parameters(recurse=False)))
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            decays = (decay_all or parameter.dim() > 1) and id(parameter) not in norm_parameters
            section = _section(name)
            if section == "pooling" and scalar_lr is not None and parameter.numel() == 1:
                section = _SCALARS
            groups[section, decays]["params"].append(parameter)
    filled = [group for group in groups.values() if group["params"]]
    if not filled:
        raise ValueError("nothing trains: every parameter is frozen")
    return filled


def _section(name: str) -> str:
    if name.startswith("backbone."):
        return "backbone"
    return "pooling" if name.removeprefix("head.").startswith("pooling.") else "head"


def _stay_in_eval(norm: nn.Module, _: Any) -> None:
    """A hook, not a replacement of ``train``: it is copied, pickled and wrapped along with the module."""
    if norm.training:
        norm.training = False
