"""From dataclasses to command lines and YAML files and back, by jsonargparse; wrong names get the nearest right one."""

import argparse
import re
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from jsonargparse import ActionYesNo, ArgumentParser, DefaultHelpFormatter

from lookalike._util.suggestions import did_you_mean
from lookalike.cli.config_file import UsageError, read_config

__all__ = ["JSON", "UsageError", "parse"]

T = TypeVar("T")
WORDS = {int: "a whole number", float: "a number", str: "a text", Path: "a path", dict: "settings by name"}
JSON = {"--json": "print the result as JSON"}


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
    files, words = _in_order(kind, argv)
    from_files: dict[str, tuple[Path, Any]] = {}
    for file in files:
        known = read_config(file, kind, [_name(flag) for flag in flags])
        from_files |= {name: (file, value) for name, value in known.items()}
    try:
        values = parser.parse_args([*(f"--config={file}" for file in files), *words])
        chosen = {entry.name: getattr(values, entry.name) for entry in fields(kind)}  # type: ignore[arg-type]
        for name in positional:  # which jsonargparse does not read from a file
            if chosen[name] is None and name in from_files:
                chosen[name] = from_files[name][1]
        return kind(**chosen), {flag for flag in flags if getattr(values, _name(flag))}
    except argparse.ArgumentError as error:
        raise UsageError(_placed(_explained(str(error), kind, flags), from_files, words)) from None
    except (ValueError, TypeError) as error:
        raise UsageError(_placed(str(error), from_files, words)) from None


def _name(option: str) -> str:
    return option.split("=")[0].strip("-").replace("-", "_")


def _placed(message: str, from_files: dict[str, tuple[Path, Any]], words: Sequence[str]) -> str:
    """The message with the file before it, if the setting that it begins with comes from one."""
    name = re.split(r"[ .:]", message, maxsplit=1)[0]
    on_line = {_name(word).removeprefix("no_").split(".")[0] for word in words if word.startswith("-")}
    return f"{from_files[name][0]}: {message}" if name in from_files and name not in on_line else message


def _in_order(kind: type[Any], argv: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The files of ``--config``, which go first, so that the line goes before them; and the other words.

    ``0.9,0.99`` becomes the list that it is.
    """
    lists = {f"--{n.replace('_', '-')}" for n, of in get_type_hints(kind).items() if get_origin(of) in (list, tuple)}
    words, files = list(argv), list[Path]()
    i = 0
    while i < len(words):
        name, equals, value = words[i].partition("=")
        if name == "--config":
            if not equals and i + 1 == len(words):
                raise UsageError("say which file: --config FILE")
            files.append(Path(value if equals else words[i + 1]).expanduser())
            del words[i : i + (1 if equals else 2)]
            continue
        if name in lists and not equals and i + 1 < len(words):
            name, equals, value = name, "=", words.pop(i + 1)
        if name in lists and equals and not value.startswith("["):
            value = f"[{value}]"
        words[i] = f"{name}{equals}{value}"
        i += 1
    return files, words


def _parser(
    kind: type[Any], prog: str, description: str, example: str, positional: Sequence[str], flags: dict[str, str]
) -> ArgumentParser:
    words = "".join(f" {name.upper()}" for name in positional)
    parser = ArgumentParser(
        prog=prog,
        usage=f"{prog}{words} [options]\n e.g.  {example}",
        description=description,
        exit_on_error=False,
        allow_abbrev=False,
        print_config=None,
        formatter_class=DefaultHelpFormatter,
    )
    parser.add_argument("--config", action="config", help="a YAML file with any of these settings")
    for flag, explanation in flags.items():
        parser.add_argument(flag, action="store_true", help=explanation)
    types = get_type_hints(kind)
    group: Any = parser
    for entry in fields(kind):
        explanation = entry.metadata["help"]
        if entry.metadata["group"] is not None:
            group = parser.add_argument_group(entry.metadata["group"])
        default = entry.default if entry.default_factory is MISSING else entry.default_factory()
        if entry.name in positional:
            name, kind_of = entry.name, types[entry.name]
            parser.add_argument(name, nargs="?", type=kind_of, metavar=name.upper(), help=explanation)
        elif bool in (types[entry.name], *get_args(types[entry.name])):
            option = f"--{entry.name.replace('_', '-')}"
            group.add_argument(option, action=ActionYesNo(no_prefix="no-"), default=default, help=explanation)
        else:
            option = f"--{entry.name.replace('_', '-')}"
            short = [f"-{entry.name}"] if len(entry.name) == 1 else []  # -k 10, as people write it
            group.add_argument(*short, option, type=types[entry.name], default=default, help=explanation)
    return parser


def _explained(message: str, kind: type[Any], flags: Iterable[str]) -> str:
    """jsonargparse's message in our words, with the name that was probably meant."""
    options = [f"--{entry.name.replace('_', '-')}" for entry in fields(kind)] + ["--config", *flags]
    if match := re.match(r"unrecognized arguments: (\S+)", message):
        word = match[1].split("=")[0]
        if not word.startswith("-"):
            return f"there is one word too many: {word!r}"
        return f"there is no option {word}{did_you_mean(word, options)}"
    if match := re.search(r"(?:Option|Key|Group key) '([^']+)' is not accepted", message):
        return f"there is no setting {match[1]!r}{did_you_mean(match[1], [entry.name for entry in fields(kind)])}"
    if match := re.match(r'Parser key "([^"]+)":\s*(.*)', message, re.DOTALL):
        reason = " ".join(match[2].split())
        choices = re.search(r"Literal\[(.*?)\]", reason)
        given = re.search(r"(?:Got|Given) value: (\S+)", reason)
        if choices and given:
            wrong, right = given[1], re.findall(r"'([^']+)'", choices[1])
            return f"{match[1]} must be one of {', '.join(right)}, got {wrong}{did_you_mean(wrong, right)}"
        wanted = {entry.name: _in_words(get_type_hints(kind)[entry.name]) for entry in fields(kind)}.get(match[1])
        value = re.search(r"(?:Got|Given) value: (.*)", reason)
        return f"{match[1]} must be {wanted}, got {value[1]}" if wanted and value else f"{match[1]}: {reason}"
    return " ".join(message.split())


def _in_words(kind: Any) -> str:
    """A type for people; nothing for those that are rarely got wrong."""
    if get_origin(kind) in (tuple, list):
        inner = [each for each in get_args(kind) if each is not ...]
        return f"a list of {len(inner)} numbers" if len(inner) > 1 else "a list of numbers"
    parts = [each for each in get_args(kind) if each is not type(None)] if type(None) in get_args(kind) else [kind]
    known = [WORDS.get(get_origin(each) or each, "") for each in parts]
    return " or ".join([*known, *(["null"] if type(None) in get_args(kind) else [])]) if all(known) else ""
