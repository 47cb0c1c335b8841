r"""File names as UTF-8 text. A file system accepts almost any bytes as a name; CSV and parquet files need UTF-8.

Python represents bytes that are not UTF-8 as surrogates, which cannot be encoded. Such a byte is written as ``\xE9``
and a backslash as two, so that different names stay different. All other names are unchanged.
"""

import re

BYTES = 0xDC00  # Python represents a byte b that is not UTF-8 by the character BYTES + b


def as_text(name: str) -> str:
    r"""Escape a file name so that it can be written as UTF-8.

    Examples:
        >>> print(as_text("caf\udce9.jpg"), as_text("a\\b.jpg"), as_text("café.jpg"))
        caf\xE9.jpg a\\b.jpg café.jpg
    """
    return re.sub(r"[\\\ud800-\udfff]", lambda match: _escape(match[0]), name)


def from_text(text: str) -> str:
    r"""Return the file name that ``as_text`` escaped.

    Examples:
        >>> from_text(r"caf\xE9.jpg") == "caf\udce9.jpg"
        True
    """
    return re.sub(r"\\(\\|x[0-9A-F]{2}|u[0-9A-F]{4})", lambda match: _unescape(match[1]), text)


def _escape(character: str) -> str:
    if character == "\\":
        return r"\\"
    byte = ord(character) - BYTES
    if 0x80 <= byte <= 0xFF:
        return f"\\x{byte:02X}"
    return f"\\u{ord(character):04X}"


def _unescape(escaped: str) -> str:
    if escaped == "\\":
        return escaped
    code = int(escaped[1:], 16)
    if escaped[0] == "x":
        code += BYTES
    return chr(code)
