"""Turns a settings dataclass into command-line options, and a command line into settings, with jsonargparse."""

import argparse
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from jsonargparse import ActionYesNo, ArgumentParser

from lookalike._util.settings import check_settings, choices_of
from lookalike.cli.argument_errors import explain_error, option_name
from lookalike.cli.config_file import UsageError, read_config

__all__ = ["JSON", "REQUIRED", "UsageError", "parse"]

T = TypeVar("T")
JSON = {"--json": "print the result as JSON"}
REQUIRED: Any = MISSING  # the default of a setting that must be given


class FileValue(NamedTuple):
    """A setting from a config file."""

    value: Any
    file: Path


def parse(
    settings_type: type[T],
    argv: Sequence[str],
    command: str,
    description: str,
    example: str,
    *,
    positional: Sequence[str] = (),
    flags: dict[str, str] | None = None,
    defaults: dict[str, Any] | None = None,
    common: Sequence[str] | None = None,
) -> tuple[T, set[str]]:
    """Parse a command line. Its options override ``--config``, which overrides the defaults.

    Args:
        settings_type: Dataclass of declared settings; every field becomes an option, ``--like-this``.
        argv: Words after the name of the command.
        command: Name of the command, for example "train".
        description: What it does, for ``--help``.
        example: A line that works, for ``--help``.
        positional: Fields that are given without an option name, in this order.
        flags: Further options without a value, and their help.
        defaults: Values that replace the defaults of the dataclass.
        common: Fields that ``--help`` shows; ``--help-all`` shows all. None: there is only ``--help``.

    Returns:
        The settings, and the flags that were given.

    Raises:
        UsageError: If an option is unknown, missing or has a wrong value.
    """
    flags = flags or {}
    if common is not None and "--help-all" in argv:
        argv, common = ["--help"], None
    parser = _build_parser(settings_type, f"lookalike {command}", description, example, positional, flags, common)
    if defaults:
        parser.set_defaults(defaults)
    files, words = _split_config_files(settings_type, argv)
    file_values: dict[str, FileValue] = {}
    for file in files:
        values = read_config(file, settings_type, [_field_name(flag) for flag in flags])
        for name, value in values.items():
            file_values[name] = FileValue(value, file)
    try:
        parsed = parser.parse_args([*(f"--config={file}" for file in files), *words])
        settings = settings_type(**_collect_values(settings_type, parsed, positional, file_values))
        check_settings(settings)
    except argparse.ArgumentError as error:
        message = explain_error(str(error), settings_type, flags)
        raise UsageError(_add_file(message, file_values, words)) from None
    except (ValueError, TypeError) as error:
        raise UsageError(_add_file(str(error), file_values, words)) from None
    return settings, {flag for flag in flags if getattr(parsed, _field_name(flag))}


def _build_parser(
    settings_type: type[Any],
    prog: str,
    description: str,
    example: str,
    positional: Sequence[str],
    flags: dict[str, str],
    common: Sequence[str] | None,
) -> ArgumentParser:
    if common is not None:
        flags = {"--help-all": "show all options, not only the common ones", **flags}
    usage = _usage(settings_type, prog, positional)
    parser = ArgumentParser(
        prog=prog,
        usage=f"{usage}\n\nexample: {example}".replace("%", "%%"),
        description=description,
        exit_on_error=False,
        allow_abbrev=False,
        print_config=None,
        formatter_class=argparse.HelpFormatter,
    )
    parser.add_argument("--config", action="config", metavar="FILE", help="YAML file with any of these settings")
    for flag, explanation in flags.items():
        parser.add_argument(flag, action="store_true", help=explanation)
    types = get_type_hints(settings_type)
    group: Any = parser
    for field in fields(settings_type):
        if field.metadata["group"] is not None:
            group = parser.add_argument_group(field.metadata["group"])
        annotation = types[field.name]
        explanation = _help(field)
        if common is not None and field.name not in common:
            explanation = argparse.SUPPRESS
        if field.name in positional:
            metavar = field.name.upper()
            parser.add_argument(field.name, nargs="?", type=annotation, metavar=metavar, help=explanation)
            continue
        names = [option_name(field.name)]
        if len(field.name) == 1:
            names.insert(0, f"-{field.name}")  # -k 10
        if annotation is bool or bool in get_args(annotation):
            action = ActionYesNo(no_prefix="no-")
            group.add_argument(*names, action=action, default=_default(field), help=explanation)
        else:
            metavar = _metavar(field.name, annotation)
            group.add_argument(*names, type=annotation, default=_default(field), metavar=metavar, help=explanation)
    return parser


def _usage(settings_type: type[Any], prog: str, positional: Sequence[str]) -> str:
    words = [prog]
    for field in fields(settings_type):
        name = field.name.upper()
        if field.name in positional and not _is_required(field):
            words.append(f"[{name}]")
        elif field.name in positional:
            words.append(name)
        elif _is_required(field):
            words.append(f"{option_name(field.name)} {name}")
    return " ".join([*words, "[options]"])


def _field_name(option: str) -> str:
    return option.partition("=")[0].strip("-").replace("-", "_")


def _default(field: "Field[Any]") -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    if field.default is MISSING:
        return None
    return field.default


def _is_required(field: "Field[Any]") -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _help(field: "Field[Any]") -> str:
    text = str(field.metadata["help"])
    default = _default(field)
    if _is_required(field):
        text += " (required)"
    elif isinstance(default, bool):
        text += f" (default: {'yes' if default else 'no'})"
    elif default not in (None, "", {}):
        text += f" (default: {default})"
    return text.replace("%", "%%")


def _metavar(name: str, annotation: Any) -> str:
    choices = choices_of(annotation)
    if choices:
        return "{" + ",".join(choices) + "}"
    return name.upper()


def _split_config_files(settings_type: type[Any], argv: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The files of ``--config`` and the other words, in which ``0.9,0.99`` becomes a list for options of that type."""
    list_options = set()
    for name, annotation in get_type_hints(settings_type).items():
        if get_origin(annotation) in (list, tuple) or any(get_origin(t) in (list, tuple) for t in get_args(annotation)):
            list_options.add(option_name(name))
    files: list[Path] = []
    words: list[str] = []
    remaining = deque(argv)
    while remaining:
        word = remaining.popleft()
        name, equals, value = word.partition("=")
        if name not in list_options and name != "--config":
            words.append(word)
            continue
        if not equals and not remaining:
            raise UsageError(f"{name} needs a value")
        if not equals:
            value = remaining.popleft()
        if name == "--config":
            files.append(Path(value).expanduser())
        elif value.startswith("[") or value == "null":
            words.append(f"{name}={value}")
        else:
            words.append(f"{name}=[{value}]")
    return files, words


def _collect_values(
    settings_type: type[Any], parsed: Any, positional: Sequence[str], file_values: dict[str, FileValue]
) -> dict[str, Any]:
    types = get_type_hints(settings_type)
    values = {}
    for field in fields(settings_type):
        value = getattr(parsed, field.name)
        if value is None and field.name in positional and field.name in file_values:
            value = file_values[field.name].value  # jsonargparse reads only options from a file
            if value is not None and Path in (types[field.name], *get_args(types[field.name])):
                value = Path(value)
        if value is None and _is_required(field):
            name = option_name(field.name)
            if field.name in positional:
                name = field.name.upper()
            raise UsageError(f"missing {name} ({field.metadata['help']})")
        values[field.name] = value
    return values


def _add_file(message: str, file_values: dict[str, FileValue], words: Sequence[str]) -> str:
    """Put the file before a message about a setting that comes from it."""
    name = re.split(r"[ .:]", message, maxsplit=1)[0]
    if name not in file_values:
        return message
    for word in words:
        if word.startswith("-") and _field_name(word).removeprefix("no_").partition(".")[0] == name:
            return message
    return f"{file_values[name].file}: {message}"
