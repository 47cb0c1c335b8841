"""``lookalike study NAME``"""

import json
import platform
import shlex
import time
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lookalike._util.files import require_own_folder
from lookalike._util.settings import setting
from lookalike.cli.arguments import JSON, UsageError, parse
from lookalike.cli.interrupt import exit_on_interrupt

DESCRIPTION = """Run one study of the papers: its figures (PNG and SVG), the numbers behind them (CSV and JSON) and a
page that says what the papers saw, what was seen here, and whether it agrees. lookalike study list shows them all.
A study that was broken off goes on where it was."""
EXAMPLE = "lookalike study tokens --quick --out runs/tokens"
FLAGS = {
    **JSON,
    "--quick": "minutes on two cores: fewer steps, samples and seeds, and what differs is printed (the default)",
    "--full": "the papers' setting",
    "--miniature": "seconds: shows that everything runs; the figures mean nothing",
    "--settings": "print the settings that would be used, as YAML, and stop",
}


@dataclass
class StudyOptions:
    name: str | None = setting(None, "which study, or list")
    data: str | None = setting(None, "pictures for studies that take any; lookalike study list says which they take")
    out: Path | None = setting(None, "folder for what it leaves behind; null: runs/studies/NAME")
    set: str = setting("", "settings of the study, as in --set 'steps=100, seeds=[0, 1]'")


def run(argv: list[str]) -> int:
    options, flags = parse(
        StudyOptions,
        argv,
        prog="lookalike study",
        description=DESCRIPTION,
        example=EXAMPLE,
        positional=["name"],
        flags=FLAGS,
    )
    if options.name is None:
        raise UsageError("say which study: lookalike study NAME; lookalike study list shows them")
    if options.name == "list":
        return _list("--json" in flags)
    scales = flags & {"--quick", "--full", "--miniature"}
    if len(scales) > 1:
        raise UsageError(f"choose one of {', '.join(sorted(scales))}")
    require_studies()
    with exit_on_interrupt():
        import yaml
        from lookalike_studies import find
        from lookalike_studies.framework.outcome import (
            MINIATURE,
            TRACES,
            as_json,
            in_words,
            leave,
            not_full,
            reduced_in_words,
            require_own_numbers,
        )
        from lookalike_studies.framework.study import bench

        from lookalike._util.progress import Display
        from lookalike._util.signals import Stopped, StopRequest
        from lookalike.experiments.choices import parse_settings, split_top_level

        study = find(options.name)
    scale: Any = next(iter(scales), "--quick")[2:]
    settings = study.chosen(scale, parse_settings(split_top_level(options.set, ",")))
    if "--settings" in flags:
        print(yaml.safe_dump(_listed(asdict(settings)), sort_keys=False).strip())
        return 0
    if study.needs_data and options.data is None:
        raise UsageError(f"the study {study.name} needs {study.data}: --data FOLDER")
    if options.data is not None and not study.data:
        raise UsageError(f"the study {study.name} takes no data, got --data {options.data}")
    out = options.out or Path("runs") / "studies" / study.name
    require_own_folder(out, "study", TRACES)
    require_own_numbers(out, study, scale)
    started = time.monotonic()
    with StopRequest().listening() as stop:
        opening = [*([MINIATURE] if scale == "miniature" else []), *reduced_in_words(study, settings)]
        display = Display(stop, opening=opening)
        place = bench(study, settings, out, display, options.data)
        try:
            found = study.find(settings, place)
        except Stopped:
            display.say("stopped; the same command goes on after what is done")
            raise
        display.open()
    how = {
        "command": shlex.join(["lookalike", "study", *argv]),
        "scale": scale,
        "miniature": scale == "miniature",
        "data": options.data or "none",
        "seconds": round(time.monotonic() - started + place.earlier, 1),
        "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
    }
    written = leave(study, settings, found, out, how)
    if "--json" in flags:
        report = {"claims": [asdict(claim) for claim in found.claims], "files": [str(path) for path in written]}
        print(as_json({"study": study.name, **how, **not_full(study, settings, found), **report}))
    else:
        print(in_words(study, settings, found, out, how))
    return 0


def require_studies() -> None:
    """Raise a clear error where the studies are not installed."""
    if find_spec("lookalike_studies") is None:
        raise UsageError("the studies are a package of their own: in a checkout, pip install -e ./studies")


def _list(as_json: bool) -> int:
    require_studies()
    from lookalike_studies import STUDIES, find

    studies = [find(name) for name in STUDIES]
    if as_json:
        print(
            json.dumps(
                [
                    {"name": s.name, "title": s.title, "data": s.data, "choices": s.choices, "source": s.source}
                    for s in studies
                ]
            )
        )
        return 0
    width = max(len(study.name) for study in studies)
    for study in studies:
        needs = f" [--data{'' if study.needs_data else ', optional'}: {study.data}]" if study.data else ""
        print(f"{study.name:<{width}}  {study.title}{needs}")
        if study.choices:
            print(f"{'':<{width}}  {study.choices}")
    return 0


def _listed(values: Any) -> Any:
    if isinstance(values, dict):
        return {name: _listed(each) for name, each in values.items()}
    return [_listed(each) for each in values] if isinstance(values, (list, tuple)) else values
