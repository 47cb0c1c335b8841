"""Vectors -> neighbours -> metrics."""

from lookalike.retrieval.metrics import retrieval_metrics
from lookalike.retrieval.search import neighbours

__all__ = ["neighbours", "retrieval_metrics"]
