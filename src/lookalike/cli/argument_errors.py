"""Explains jsonargparse's errors in plain words, with the name that was probably meant."""

import re
from collections.abc import Collection
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from lookalike._util.settings import EXPECTED, choices_of
from lookalike._util.suggestions import did_you_mean

TYPE_NAMES = {**EXPECTED, Path: "a path"}


def option_name(field_name: str) -> str:
    """The option of a setting: ``--batch-size`` for ``batch_size``."""
    return f"--{field_name.replace('_', '-')}"


def explain_error(message: str, settings_type: type[Any], flags: Collection[str]) -> str:
    """Rewrite an error message of jsonargparse.

    Returns:
        One line for the user.
    """
    message = " ".join(message.split())
    names = [field.name for field in fields(settings_type)]
    match = re.match(r"unrecognized arguments: (\S+)", message)
    if match:
        word = match[1].partition("=")[0]
        if not word.startswith("-"):
            return f"unexpected argument {word!r}"
        options = [option_name(name) for name in names]
        return f"there is no option {word}{did_you_mean(word, [*options, '--config', *flags])}"
    match = re.search(r"(?:Option|Key|Group key) '([^']+)' is not accepted", message)
    if match:
        return f"there is no setting {match[1]!r}{did_you_mean(match[1], names)}"
    match = re.match(r'Parser key "([^"]+)": *(.*)', message)
    if match:
        return _explain_value(match[1], match[2], get_type_hints(settings_type).get(match[1]))
    return message


def _explain_value(name: str, reason: str, annotation: Any) -> str:
    given = re.search(r"(?:Got|Given) value: (.*)", reason)
    if given is None:
        return f"{name}: {reason}"
    choices = choices_of(annotation)
    if choices:
        wrong = given[1].split()[0]
        return f"{name} must be one of {', '.join(choices)}, got {wrong}{did_you_mean(wrong, choices)}"
    expected = _type_in_words(annotation)
    if not expected:
        return f"{name}: {reason}"
    return f"{name} must be {expected}, got {given[1]}"


def _type_in_words(annotation: Any) -> str:
    """Name a type; "" for types that are not in ``TYPE_NAMES``."""
    members = [annotation]
    if type(None) in get_args(annotation):
        members = list(get_args(annotation))
    names = []
    for member in members:
        origin = get_origin(member) or member
        if origin in (tuple, list):
            names.append(_list_in_words(get_args(member)))
        elif member is type(None):
            names.append("null")
        elif origin in TYPE_NAMES:
            names.append(TYPE_NAMES[origin])
        else:
            return ""
    return " or ".join(names)


def _list_in_words(entries: tuple[Any, ...]) -> str:
    if len(entries) < 2 or ... in entries:
        return "a list of numbers"
    return f"a list of {len(entries)} numbers"
