"""Pretraining of the studies' backbones: ``lookalike.training.pretrain``."""

from lookalike.training.pretrain import Pretrained, as_inputs, learn, pretrain, read_pixels, shifted

__all__ = ["Pretrained", "as_inputs", "classify", "learn", "read_pixels", "shifted"]

classify = pretrain
