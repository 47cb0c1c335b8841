"""Vectors -> neighbours -> figures."""

from lookalike.retrieval.metrics import retrieval_metrics

__all__ = ["retrieval_metrics"]
