"""lookalike: learn what looks alike. An embedding that ignores the background, measured honestly, to search with.

``import lookalike`` needs torch only.
"""

from lookalike import geometry, pooling
from lookalike.pooling import GeneralizedSumPool, partial_transport

__all__ = ["GeneralizedSumPool", "geometry", "partial_transport", "pooling"]
__version__ = "0.1.0"
