"""The YAML file of ``--config``, looked at before it is used: what is wrong in it is named with the file and the line.

YAML itself takes the last of two equal keys and makes nothing of a key without a value. Both are slips of the pen.
"""

from collections.abc import Collection, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml

from lookalike._util.suggestions import did_you_mean

SWITCHES = ("true", "yes", "false", "no")


class UsageError(ValueError):
    """What was typed cannot be understood."""


def read_config(file: Path, kind: type[Any], flags: Collection[str] = ()) -> dict[str, Any]:
    """The settings in ``file``, which must be fields of the dataclass ``kind``, or ``flags``. Raises ``UsageError``."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except OSError as error:
        raise UsageError(f"--config {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--config {file} is not a text in UTF-8") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: as of the date 2024-13-45
        raise UsageError(f"--config {file} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(root, yaml.MappingNode):
        got = "nothing" if root is None else "a sequence" if isinstance(root, yaml.SequenceNode) else "a scalar"
        raise UsageError(f"--config {file} must hold settings by name, as steps: 500, got {got}")
    types = get_type_hints(kind)
    names = [entry.name for entry in fields(kind)]
    for name, at, top in _entries(root, file):
        if top and name not in (*names, *flags):
            raise UsageError(f"{at}: there is no setting {name!r}{did_you_mean(name, names)}")
        if top and bool in (types.get(name), *get_args(types.get(name))):
            _check_switch(name, values[name], at)
    return values


def _entries(root: yaml.MappingNode, file: Path) -> Iterator[tuple[str, str, bool]]:
    """Every key as ``outer.inner``, where it stands, and whether it is no inner one.

    A key that is empty or stands twice raises.
    """
    waiting: list[tuple[str, yaml.Node]] = [("", root)]
    known: set[int] = set()
    while waiting:
        prefix, node = waiting.pop()
        if not isinstance(node, yaml.MappingNode) or id(node) in known:  # known: an alias, perhaps of what it is in
            continue
        known.add(id(node))
        lines: dict[str, int] = {}
        for key, value in node.value:
            name, line = f"{prefix}{key.value}", key.start_mark.line + 1
            at = f"{file}, line {line}"
            if name in lines:
                raise UsageError(f"{at}: {name} stands there twice, first in line {lines[name]}")
            lines[name] = line
            if isinstance(value, yaml.ScalarNode) and value.tag.endswith(":null") and not value.value:
                raise UsageError(f"{at}: {name} has no value; write null to leave it open, or remove the line")
            yield name, at, node is root
            waiting.append((f"{name}.", value))


def _check_switch(name: str, value: Any, at: str) -> None:
    if value is not None and not isinstance(value, bool) and str(value).lower() not in SWITCHES:
        raise UsageError(f"{at}: {name} must be true or false, got {value!r}")
