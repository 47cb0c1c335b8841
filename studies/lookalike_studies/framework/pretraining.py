"""Pretraining of the studies' backbones: ``lookalike.training.pretrain``."""

from lookalike.inference.preprocess import to_inputs as as_inputs
from lookalike.training.pretrain import Pretrained, learn, pretrain, read_pixels, shifted

__all__ = ["Pretrained", "as_inputs", "classify", "learn", "read_pixels", "shifted"]

classify = pretrain
