"""``lookalike cache [clear|verify] [IDS]``: list what is cached on this machine, remove it, or look for damage."""

import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lookalike._util.checksums import describe_findings
from lookalike._util.files import cache_folder, folder_size
from lookalike._util.settings import setting
from lookalike._util.suggestions import did_you_mean
from lookalike.cli.arguments import JSON, UsageError, parse
from lookalike.cli.output import print_result

DESCRIPTION = """Without arguments: list the cached features of pictures, by backbone, and the converted networks, with
their sizes. With clear: remove all of them, or those with the given ids. Nothing is lost: what is needed again is
computed again. With verify: compare cached features with their checksums; the exit code is 1 if some are damaged.
train, evaluate, embed and index use the cache; a run that is under way must not lose it."""
EXAMPLE = "lookalike cache clear 90223a39"
ENGINES = "engines"


@dataclass
class CacheSettings:
    """Options of ``lookalike cache``."""

    action: str | None = setting(None, "clear or verify, or nothing for the list")
    ids: str | None = setting(
        None, "what to clear or verify: ids of the list, or their beginnings, separated by commas; null: all"
    )
    cache: Path | None = setting(None, "folder of the cache; null: ~/.cache/lookalike, or LOOKALIKE_CACHE")


def run(argv: list[str]) -> int:
    """Run ``lookalike cache`` with the words after its name, and return the exit code."""
    settings, flags = parse(
        CacheSettings, argv, "cache", DESCRIPTION, EXAMPLE, positional=["action", "ids"], flags=JSON
    )
    folder = settings.cache or cache_folder()
    entries = list_entries(folder)
    cleared: list[dict[str, Any]] = []
    if settings.action == "verify":
        stores = {rows.parent.name for rows in folder.glob("*/part-*.rows")}  # also one whose about.json is damaged
        if settings.ids:
            stores &= {entry["id"] for entry in _choose(entries, settings.ids)}
        return _verify(folder, sorted(stores), as_json=bool(flags))
    if settings.action is not None:
        if settings.action != "clear":
            hint = did_you_mean(settings.action, ["clear", "verify"])
            raise UsageError(f"there is no 'cache {settings.action}'{hint}")
        cleared = _choose(entries, settings.ids or "")
        for entry in cleared:
            shutil.rmtree(folder / entry["id"])
        entries = [entry for entry in entries if entry not in cleared]
    report = {"folder": str(folder), "entries": entries, "bytes": _total(entries), "cleared": cleared}
    if flags:
        print(json.dumps(report))
    else:
        print_result(_summarise(folder, entries, cleared))
    return 0


def list_entries(folder: Path) -> list[dict[str, Any]]:
    """List the stores of features and the converted networks below a cache folder, largest first.

    Returns:
        Of each: "id" (name of its folder), "kind" ("features" or "networks"), "bytes", "count" of pictures and views or
        of networks, and for features "backbone", "size", "engine" and "input_of" (the stage that the maps enter; None
        for the last features).
    """
    entries = []
    for about_file in folder.glob("*/about.json"):
        about: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            about = json.loads(about_file.read_bytes())
        if not isinstance(about, dict) or "shape" not in about:
            continue  # not ours
        store = about_file.parent
        lines = 0
        for keys in store.glob("part-*.keys"):
            lines += keys.read_bytes().count(b"\n")
        entries.append(
            {
                "id": store.name,
                "kind": "features",
                "bytes": folder_size(store),
                "count": lines,
                "backbone": about.get("backbone"),
                "size": about.get("input", {}).get("size"),
                "engine": about.get("engine", "torch"),
                "input_of": about.get("input_of"),
            }
        )
    engines = folder / ENGINES
    if engines.is_dir():
        count = len(list(engines.iterdir()))
        entries.append({"id": ENGINES, "kind": "networks", "bytes": folder_size(engines), "count": count})
    return sorted(entries, key=lambda entry: -entry["bytes"])


def _verify(folder: Path, stores: list[str], as_json: bool) -> int:
    """Check stores of features; a converted network is checked whenever it is loaded."""
    from lookalike.inference.feature_store import check_store

    findings = [check_store(folder / store) for store in stores]
    damaged = sum(finding.status == "damaged" for finding in findings)
    if as_json:
        parts = [finding._asdict() for finding in findings]
        print(json.dumps({"folder": str(folder), "damaged": damaged, "parts": parts}))
    else:
        print_result(describe_findings(findings) or f"{folder} has no features")
    return int(damaged > 0)


def _choose(entries: list[dict[str, Any]], ids: str) -> list[dict[str, Any]]:
    if not ids:
        return entries
    chosen = []
    for wanted in ids.split(","):
        matches = [entry for entry in entries if entry["id"].startswith(wanted)]
        if len(matches) != 1:
            problem = "is not in the cache" if not matches else f"begins {len(matches)} ids"
            raise UsageError(f"{wanted!r} {problem}: see lookalike cache")
        chosen += matches
    return chosen


def _total(entries: list[dict[str, Any]]) -> int:
    return sum(entry["bytes"] for entry in entries)


def _summarise(folder: Path, entries: list[dict[str, Any]], cleared: list[dict[str, Any]]) -> str:
    lines = []
    if cleared:
        lines.append(f"removed {len(cleared)} of {len(cleared) + len(entries)}: {_total(cleared) / 1e6:,.1f} MB")
    for entry in entries:
        text = f"{entry['id'][:8]}  {entry['bytes'] / 1e6:>10,.1f} MB  "
        if entry["kind"] == "networks":
            text += f"{entry['count']:,} converted networks"
        else:
            text += f"{entry['count']:,} pictures and views, {entry['backbone']} at {entry['size']} px"
            text += f" by {entry['engine']}"
            if entry["input_of"]:
                text += f", input of {entry['input_of']}"
        lines.append(text)
    lines.append(f"{folder}: {_total(entries) / 1e6:,.1f} MB")
    return "\n".join(lines)
