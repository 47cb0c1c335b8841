"""Numbers in requests: ASCII digits only, parsed in full before they are compared with a limit.

``int`` and ``float`` accept more than people mean to send: underscores, digits of other scripts, nan, infinity.
"""

import re

_WHOLE = re.compile(r"\s*0*([0-9]{1,18})\s*")
_DECIMAL = re.compile(r"\s*[0-9]{0,18}(?<=[0-9])(\.[0-9]{0,18})?(e-?[0-9]{1,2})?\s*|\s*\.[0-9]{1,18}\s*", re.IGNORECASE)


def whole_number(text: object) -> int:
    """Parse a whole number that is not negative.

    Args:
        text: The field of a request, or a default that is a number already.

    Returns:
        The number.

    Raises:
        ValueError: If it is not a whole number, or has more than 18 digits.

    Examples:
        >>> whole_number("0012"), whole_number(7)
        (12, 7)
    """
    if isinstance(text, int):
        return text
    match = _WHOLE.fullmatch(str(text))
    if match is None:
        raise ValueError("expected a whole number, written in the digits 0 to 9")
    return int(match[1])


def decimal(text: str) -> float:
    """Parse a number that is not negative, such as 0.25 or 1e-5.

    Args:
        text: The field of a request.

    Returns:
        The number, which is finite.

    Raises:
        ValueError: If it is not a number.

    Examples:
        >>> decimal(" 0.25"), decimal(".5"), decimal("1e-5")
        (0.25, 0.5, 1e-05)
    """
    if not _DECIMAL.fullmatch(text):
        raise ValueError("expected a number, written in the digits 0 to 9")
    return float(text)
