"""Vectors -> neighbours -> metrics. Names load on first use, so that importing the package does not load torch."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lookalike.retrieval.metrics import retrieval_metrics
    from lookalike.retrieval.search import neighbours

__all__ = ["neighbours", "retrieval_metrics"]


def __getattr__(name: str) -> Any:
    if name == "neighbours":
        from lookalike.retrieval.search import neighbours

        return neighbours
    if name == "retrieval_metrics":
        from lookalike.retrieval.metrics import retrieval_metrics

        return retrieval_metrics
    raise AttributeError(f"module 'lookalike.retrieval' has no attribute {name!r}")
