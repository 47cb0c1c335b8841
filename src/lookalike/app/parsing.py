"""From dataclasses to command lines and YAML files and back, by jsonargparse; wrong names get the nearest right one."""

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import yaml
from jsonargparse import ActionYesNo, ArgumentParser, DefaultHelpFormatter

from lookalike.training.settings import nearest

T = TypeVar("T")
JSON = {"--json": "print the result as JSON"}


class UsageError(ValueError):
    """What was typed cannot be understood."""


def parse(
    kind: type[T],
    argv: Sequence[str],
    *,
    prog: str,
    description: str,
    example: str,
    positional: Sequence[str] = (),
    flags: dict[str, str] | None = None,
    defaults: dict[str, Any] | None = None,
) -> tuple[T, set[str]]:
    """An instance of the dataclass ``kind``: its defaults, then ``--config``, then what is on the line.

    Every field is an option, ``--like-this``; those named in ``positional`` stand alone, in that order. ``flags`` are
    options that are no settings, with their explanations; those that were given come back beside the settings.
    """
    flags = flags or {}
    parser = _parser(kind, prog, description, example, positional, flags)
    if defaults:
        parser.set_defaults(defaults)
    try:
        values = parser.parse_args(_in_order(kind, argv))
    except argparse.ArgumentError as error:
        raise UsageError(_explained(str(error), kind, flags)) from None
    chosen = {entry.name: getattr(values, entry.name) for entry in fields(kind)}  # type: ignore[arg-type]
    for name in positional:  # which jsonargparse does not read from a file
        if chosen[name] is None and getattr(values, "config", None):
            chosen[name] = yaml.safe_load(Path(str(values.config[-1])).read_text(encoding="utf-8")).get(name)
    return kind(**chosen), {flag for flag in flags if getattr(values, flag.strip("-").replace("-", "_"))}


def _in_order(kind: type[Any], argv: Sequence[str]) -> list[str]:
    """``--config`` first, so that the line goes before the file; ``0.9,0.99`` as the list that it is."""
    lists = {f"--{n.replace('_', '-')}" for n, of in get_type_hints(kind).items() if get_origin(of) in (list, tuple)}
    words, files = list(argv), []
    i = 0
    while i < len(words):
        name, equals, value = words[i].partition("=")
        if name == "--config":
            length = 1 if equals else 2
            files += words[i : i + length]
            del words[i : i + length]
            continue
        if name in lists and not equals and i + 1 < len(words):
            name, equals, value = name, "=", words.pop(i + 1)
        if name in lists and equals and not value.startswith("["):
            value = f"[{value}]"
        words[i] = f"{name}{equals}{value}"
        i += 1
    return files + words


def _parser(
    kind: type[Any], prog: str, description: str, example: str, positional: Sequence[str], flags: dict[str, str]
) -> ArgumentParser:
    parser = ArgumentParser(
        prog=prog,
        description=description,
        epilog=f"example: {example}",
        exit_on_error=False,
        print_config=None,
        formatter_class=DefaultHelpFormatter,
    )
    parser.add_argument("--config", action="config", help="a YAML file with any of these settings")
    for flag, explanation in flags.items():
        parser.add_argument(flag, action="store_true", help=explanation)
    types = get_type_hints(kind)
    for entry in fields(kind):
        explanation = entry.metadata["help"]
        default = entry.default if entry.default_factory is MISSING else entry.default_factory()
        if entry.name in positional:
            name, kind_of = entry.name, types[entry.name]
            parser.add_argument(name, nargs="?", type=kind_of, metavar=name.upper(), help=explanation)
        elif bool in (types[entry.name], *get_args(types[entry.name])):
            option = f"--{entry.name.replace('_', '-')}"
            parser.add_argument(option, action=ActionYesNo(no_prefix="no-"), default=default, help=explanation)
        else:
            option = f"--{entry.name.replace('_', '-')}"
            parser.add_argument(option, type=types[entry.name], default=default, help=explanation)
    return parser


def _explained(message: str, kind: type[Any], flags: Iterable[str]) -> str:
    """jsonargparse's message in our words, with the name that was probably meant."""
    options = [f"--{entry.name.replace('_', '-')}" for entry in fields(kind)] + ["--config", *flags]
    if match := re.match(r"unrecognized arguments: (\S+)", message):
        word = match[1].split("=")[0]
        if not word.startswith("-"):
            return f"there is one word too many: {word!r}"
        return f"there is no option {word}{nearest(word, options)}"
    if match := re.search(r"(?:Option|Key|Group key) '([^']+)' is not accepted", message):
        return f"there is no setting {match[1]!r}{nearest(match[1], [entry.name for entry in fields(kind)])}"
    if match := re.match(r'Parser key "([^"]+)":\s*(.*)', message, re.DOTALL):
        reason = " ".join(match[2].split())
        choices = re.search(r"Literal\[(.*?)\]", reason)
        given = re.search(r"(?:Got|Given) value: (\S+)", reason)
        if choices and given:
            wrong, right = given[1], re.findall(r"'([^']+)'", choices[1])
            return f"{match[1]} must be one of {', '.join(right)}, got {wrong}{nearest(wrong, right)}"
        return f"{match[1]}: {reason}"
    return " ".join(message.split())
