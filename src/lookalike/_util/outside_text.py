"""Texts from outside (file names, labels) made safe for terminals and spreadsheets."""

import re
from collections.abc import Iterable

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff]")
_BEGINS_FORMULA = "[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"  # the last four are the wide = + - @ of East Asian scripts
_FORMULA = re.compile(f"'*{_BEGINS_FORMULA}")
_ESCAPED_FORMULA = re.compile(f"'+{_BEGINS_FORMULA}")
_ENDS_CELL = re.compile('[",\r\n]')
_NUMBER = re.compile(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?", re.IGNORECASE)


def printable(text: str, *, lines: bool = False) -> str:
    r"""Show control characters, terminal escapes and reversals of the reading direction instead of sending them.

    Args:
        text: The text.
        lines: Keep line ends and tabs, for a text of several lines.

    Returns:
        The text with these characters as ``\x1b`` or ``\u202e``.

    Examples:
        >>> print(printable("wren\x1b[2J\u202egpj.exe"))
        wren\x1b[2J\u202egpj.exe
    """

    def escape(match: re.Match[str]) -> str:
        if lines and match[0] in "\n\t":
            return match[0]
        code = ord(match[0])
        if code < 0x100:
            return f"\\x{code:02x}"
        return f"\\u{code:04x}"

    return _CONTROL.sub(escape, text)


def escape_formula(cell: str) -> str:
    """Keep a spreadsheet from running a cell that begins like a formula.

    Args:
        cell: The text of a cell.

    Returns:
        The text, with an apostrophe in front if it begins like a formula and is not a number.

    Examples:
        >>> [escape_formula(cell) for cell in ("=1+1", "-0.5", "@me", "wren")]
        ["'=1+1", '-0.5', "'@me", 'wren']
    """
    if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):
        return f"'{cell}"
    return cell


def csv_line(cells: Iterable[object]) -> str:
    r"""Format a line of CSV whose cells are safe for spreadsheets.

    ``csv.writer`` with lines that end in ``\n`` leaves a carriage return bare, and spreadsheets begin a new line there,
    perhaps with a formula.

    Args:
        cells: The cells. They are escaped as by ``escape_formula``.

    Examples:
        >>> csv_line(["=1+1", "a\r=1+1", 2])
        '\'=1+1,"a\r=1+1",2\n'
    """
    escaped = []
    for cell in cells:
        text = escape_formula(str(cell))
        if _ENDS_CELL.search(text):
            text = '"' + text.replace('"', '""') + '"'
        escaped.append(text)
    return ",".join(escaped) + "\n"


def unescape_formula(cell: str) -> str:
    """Return the text that ``escape_formula`` was given.

    Examples:
        >>> unescape_formula("'=1+1"), unescape_formula("'tis")
        ('=1+1', "'tis")
    """
    if _ESCAPED_FORMULA.match(cell):
        return cell[1:]
    return cell
