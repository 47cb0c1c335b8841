"""Centre and scale of vectors, chosen so that products in fp32 keep the digits that matter. Needs no torch."""

import math
from collections.abc import Iterable
from typing import Any

UNSCALED = 2.0**30  # entries up to this, and from its inverse, are not rescaled
FAR = 3.0  # squared distance of the centre from zero, in variances, from which vectors are centred


def choose_exponent(largest: float) -> int:
    """Return the power of 2 to divide by so that entries up to ``largest`` have squares within fp32; mostly 0."""
    if largest == 0 or 1 / UNSCALED <= largest <= UNSCALED:
        return 0
    return max(math.frexp(largest)[1], -1000)


def choose_centre(chunks: Iterable[Any], exponent: int) -> Any:
    """Return the mean (D,) of vectors; None if they are not far from zero.

    Args:
        chunks: The vectors in fp64, as arrays or tensors (n, D); at least one vector.
        exponent: From ``choose_exponent``.
    """
    scale = 2.0**-exponent
    total: Any = 0.0
    squares = 0.0
    count = 0
    for chunk in chunks:
        chunk = chunk * scale
        total = total + chunk.sum(0)
        squares += float((chunk * chunk).sum())
        count += len(chunk)
    centre = total / count
    offset = float((centre * centre).sum())
    variance = squares / count - offset
    if offset <= FAR * variance:
        return None
    return centre / scale
