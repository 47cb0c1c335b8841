r"""Names of files as texts. A file system takes almost any bytes for a name; a CSV or parquet file holds UTF-8.

Python lets bytes that are not UTF-8 pass as halves of characters ("surrogates"), which cannot be written down. Here
the byte is written as ``\xE9`` and, so that no two names become the same text, a backslash as two. All other names stay
as they are.
"""

import re

BYTES = 0xDC00  # byte b that is not UTF-8 passes as the character BYTES + b


def as_text(name: str) -> str:
    r"""A name as it can be written in UTF-8; ``from_text`` gives the name back.

    >>> print(as_text("caf\udce9.jpg"), as_text("a\\b.jpg"), as_text("café.jpg"))
    caf\xE9.jpg a\\b.jpg café.jpg
    """
    return re.sub(r"[\\\ud800-\udfff]", lambda found: _escape(found[0]), name)


def from_text(text: str) -> str:
    r"""The name that ``as_text`` wrote, to open the file by.

    >>> from_text(r"caf\xE9.jpg") == "caf\udce9.jpg"
    True
    """
    return re.sub(r"\\(\\|x[0-9A-F]{2}|u[0-9A-F]{4})", lambda found: _character(found[1]), text)


def _escape(character: str) -> str:
    if character == "\\":
        return r"\\"
    byte = ord(character) - BYTES
    return f"\\x{byte:02X}" if 0x80 <= byte <= 0xFF else f"\\u{ord(character):04X}"


def _character(escaped: str) -> str:
    if escaped == "\\":
        return escaped
    return chr(int(escaped[1:], 16) + (BYTES if escaped[0] == "x" else 0))
