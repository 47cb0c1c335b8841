"""Reads the YAML file of ``--config``; every error names the file and the line.

YAML itself accepts a key twice and a key without a value. Both are mistakes here.
"""

from collections.abc import Collection, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_type_hints

import yaml

from lookalike._util.suggestions import did_you_mean
from lookalike._util.untrusted import LARGEST_YAML, compose_yaml, parse_yaml, read_text

SWITCHES = ("true", "yes", "false", "no")


class UsageError(ValueError):
    """The command line or its config file is wrong."""


class Entry(NamedTuple):
    """A key of the file."""

    name: str  # outer.inner for nested keys
    position: str  # "FILE, line N"
    is_nested: bool


def read_config(file: Path, settings_type: type[Any], flags: Collection[str] = ()) -> dict[str, Any]:
    """Read settings from a YAML file.

    Raises:
        UsageError: If the file cannot be read, or has a key that is unknown, empty or repeated.
    """
    try:
        text = read_text(file, LARGEST_YAML)
        root = compose_yaml(text)
        values = parse_yaml(text)
    except OSError as error:
        raise UsageError(f"--config {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--config {file} is not UTF-8 text") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2024-13-45
        raise UsageError(f"--config {file} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(root, yaml.MappingNode):
        kinds = {yaml.SequenceNode: "a list", yaml.ScalarNode: "a single value"}
        raise UsageError(
            f"--config {file} must contain settings by name, for example steps: 500, "
            f"got {kinds.get(type(root), 'an empty file')}"
        )
    types = get_type_hints(settings_type)
    names = [field.name for field in fields(settings_type)]
    for entry in _read_entries(root, file):
        if entry.is_nested:
            continue
        if entry.name not in names and entry.name not in flags:
            raise UsageError(f"{entry.position}: there is no setting {entry.name!r}{did_you_mean(entry.name, names)}")
        annotation = types.get(entry.name)
        if annotation is bool or bool in get_args(annotation):
            _check_switch(entry, values[entry.name])
    return values


def _read_entries(root: yaml.MappingNode, file: Path) -> Iterator[Entry]:
    """All keys at every depth. Empty and repeated keys raise."""
    queue: list[tuple[str, yaml.Node]] = [("", root)]
    visited: set[int] = set()
    while queue:
        prefix, node = queue.pop()
        if not isinstance(node, yaml.MappingNode) or id(node) in visited:  # an alias may point at its own parent
            continue
        visited.add(id(node))
        lines: dict[str, int] = {}
        for key, value in node.value:
            name = f"{prefix}{key.value}"
            line = key.start_mark.line + 1
            position = f"{file}, line {line}"
            if name in lines:
                raise UsageError(f"{position}: {name} is repeated, first in line {lines[name]}")
            lines[name] = line
            if isinstance(value, yaml.ScalarNode) and value.tag.endswith(":null") and not value.value:
                raise UsageError(f"{position}: {name} has no value; write null or remove the line")
            yield Entry(name, position, node is not root)
            queue.append((f"{name}.", value))


def _check_switch(entry: Entry, value: Any) -> None:
    if value is not None and not isinstance(value, bool) and str(value).lower() not in SWITCHES:
        raise UsageError(f"{entry.position}: {entry.name} must be true or false, got {value!r}")
