"""JSON and YAML from untrusted sources: bounded in size, depth and number of values.

A short text can stand for very much: aliases of YAML repeat each other, brackets nest. All files of runs, models and
indexes are read here, so that none of them takes more memory or time than its size suggests.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lookalike._util.checksums import DamagedFile, check_content

LARGEST_JSON = 4 * 2**20  # bytes
LARGEST_LIST = 64 * 2**20  # bytes of a JSON file that lists files or results
LARGEST_YAML = 2**18  # bytes; parsing takes about 20 s per MB
DEEPEST = 64  # lists and mappings inside each other
MOST_NODES = 100_000  # values of a YAML file, with aliases expanded
ATTEMPTS = 3  # attempts to read a file together with its checksum
LONGEST_NUMBER = 400  # characters; reading a long number takes the square of its length


class UnsafeYaml(yaml.YAMLError):
    """YAML that stands for more than a file of settings needs."""


def read_text(path: Path, most: int) -> str:
    """Read a text file in UTF-8.

    Args:
        path: The file.
        most: Largest accepted size in bytes.

    Returns:
        The text, without a byte order mark.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is larger, not UTF-8, or has another checksum than ``checksums.json`` beside it says.
    """
    for _ in range(ATTEMPTS):  # another process may replace the file between the reading of both
        with path.open("rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise ValueError(f"{path} is larger than {most:,} bytes")
        with suppress(DamagedFile):
            check_content(path, content)
            return content.decode("utf-8-sig")
    check_content(path, content)
    return content.decode("utf-8-sig")


def read_json(path: Path, most: int = LARGEST_JSON) -> Any:
    """Read a JSON file.

    Args:
        path: The file.
        most: Largest accepted size in bytes.

    Returns:
        Its value.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is no JSON, too large, or nested deeper than 64 levels.
    """
    return parse_json(read_text(path, most))


def parse_json(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: If it is no JSON, or nested deeper than 64 levels.

    Examples:
        >>> parse_json("[" * 65 + "]" * 65)
        Traceback (most recent call last):
        ValueError: nested deeper than 64 levels
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"nested deeper than {DEEPEST} levels") from None
    level = [value]
    for _ in range(DEEPEST):
        level = _inner_containers(level)
    if level:
        raise ValueError(f"nested deeper than {DEEPEST} levels")
    return value


def _inner_containers(values: list[Any]) -> list[Any]:
    """The lists and mappings directly inside of some values."""
    inner: list[Any] = []
    for value in values:
        if isinstance(value, dict):
            inner.extend(value.values())
        elif isinstance(value, list):
            inner.extend(value)
    return [value for value in inner if isinstance(value, (dict, list))]


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is larger than 256 KiB, or not UTF-8.
        yaml.YAMLError: If it is no YAML, or stands for too much.
    """
    return parse_yaml(read_text(path, LARGEST_YAML))


def parse_yaml(text: str) -> Any:
    """Parse YAML into plain values.

    Raises:
        yaml.YAMLError: If it is no YAML, or stands for too much.
        ValueError: If a value cannot be converted, such as the date 2024-13-45.

    Examples:
        >>> parse_yaml("steps: 500")
        {'steps': 500}
    """

    def construct(loader: yaml.SafeLoader, root: yaml.Node | None) -> Any:
        if root is None:
            return None
        return loader.construct_document(root)

    return _load(text, construct)


def compose_yaml(text: str) -> yaml.Node | None:
    """Parse YAML into nodes, which know their lines; None for an empty text.

    Raises:
        yaml.YAMLError: If it is no YAML, or stands for too much.
    """
    return _load(text, lambda _, root: root)


def _load(text: str, finish: Callable[[yaml.SafeLoader, yaml.Node | None], Any]) -> Any:
    if len(text) > LARGEST_YAML:
        raise UnsafeYaml(f"longer than {LARGEST_YAML:,} characters")
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is not None:
            _measure(root, {}, 0)
        return finish(loader, root)
    except RecursionError:
        raise UnsafeYaml(f"nested deeper than {DEEPEST} levels") from None
    finally:
        loader.dispose()


class _Extent(NamedTuple):
    """What a node stands for, aliases replaced."""

    size: int  # number of values
    height: int  # lists and mappings inside each other


def _measure(node: yaml.Node, extents: dict[int, _Extent | None], depth: int) -> _Extent:
    """Measure a node; ``extents`` has those of nodes seen before, None for unfinished ones."""
    if id(node) in extents:
        extent = extents[id(node)]
        if extent is None:
            raise UnsafeYaml("an alias contains itself")
        return extent
    if depth > DEEPEST:
        raise UnsafeYaml(f"nested deeper than {DEEPEST} levels")
    extents[id(node)] = None
    inner: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        for pair in node.value:
            inner += pair
    elif isinstance(node, yaml.SequenceNode):
        inner = node.value
    elif node.tag.endswith((":int", ":float")) and len(node.value) > LONGEST_NUMBER:
        raise UnsafeYaml(f"a number of more than {LONGEST_NUMBER} characters")
    size = 1
    height = 0 if isinstance(node, yaml.ScalarNode) else 1
    for value in inner:
        extent = _measure(value, extents, depth + 1)
        size += extent.size
        height = max(height, extent.height + 1)
    if height > DEEPEST:
        raise UnsafeYaml(f"nested deeper than {DEEPEST} levels")
    if size > MOST_NODES:
        raise UnsafeYaml(f"more than {MOST_NODES:,} values, with aliases expanded")
    extents[id(node)] = _Extent(size, height)
    return _Extent(size, height)
