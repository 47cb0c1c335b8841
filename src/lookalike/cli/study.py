"""``lookalike study NAME``: reproduce a figure of the papers."""

import json
import shlex
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lookalike._util.settings import setting
from lookalike.cli.arguments import JSON, UsageError, parse
from lookalike.cli.executor import ExecutorOptions
from lookalike.cli.interrupt import exit_on_interrupt
from lookalike.cli.output import print_result

DESCRIPTION = """Run one study of the papers. It writes figures (PNG and SVG), the numbers behind them (CSV and JSON)
and a page that compares the papers' claims with the results here. A study that was stopped continues where it was.
lookalike study list shows all studies."""
EXAMPLE = "lookalike study tokens --quick --out runs/tokens"
SCALES = {
    "--quick": "minutes on two cores, with fewer steps, samples and seeds; prints what differs (the default)",
    "--full": "the papers' setting",
    "--miniature": "seconds: shows that everything runs; the figures mean nothing",
}
FLAGS = {**JSON, **SCALES, "--settings": "print the settings as YAML for --config, and exit"}


@dataclass
class StudyOptions(ExecutorOptions):
    """Options of ``lookalike study``."""

    name: str | None = setting(None, "name of the study, or list")
    data: str | None = setting(None, "pictures, for studies that take some; see lookalike study list")
    out: Path | None = setting(None, "folder for the files; null: runs/studies/NAME")
    set: str = setting("", "settings of the study, as in --set 'steps=100, seeds=[0, 1]'")


def run(argv: list[str]) -> int:
    """Run ``lookalike study`` with the words after its name, and return the exit code."""
    options, flags = parse(StudyOptions, argv, "study", DESCRIPTION, EXAMPLE, positional=["name"], flags=FLAGS)
    if options.name is None:
        raise UsageError("missing NAME of the study; lookalike study list shows all")
    scales = flags & SCALES.keys()
    if len(scales) > 1:
        raise UsageError(f"choose one of {', '.join(sorted(scales))}")
    require_studies()
    if options.name == "list":
        return _list_studies("--json" in flags)
    with exit_on_interrupt():
        import yaml
        from lookalike_studies import get_study
        from lookalike_studies.framework.outputs import as_json, describe_differences, summarize
        from lookalike_studies.framework.runner import run_study

        from lookalike.experiments.choices import parse_settings, split_top_level

        study = get_study(options.name)
    scale: Any = "quick"
    if scales:
        scale = scales.pop().removeprefix("--")
    settings = study.load_settings(scale, parse_settings(split_top_level(options.set, ",")))
    if "--settings" in flags:
        assignments = [f"{name}={json.dumps(value)}" for name, value in asdict(settings).items()]
        config = {"name": study.name, scale: True, "set": ", ".join(assignments)}
        if options.data is not None:
            config["data"] = options.data
        print(yaml.safe_dump(config, sort_keys=False).strip())
        return 0
    if study.needs_data and options.data is None:
        raise UsageError(f"the study {study.name} needs {study.data}: --data FOLDER")
    if options.data is not None and not study.data:
        raise UsageError(f"the study {study.name} takes no data, got --data {options.data}")
    executor = None
    if options.executor != "local" or options.workers > 1:
        if not study.has_parts:
            raise UsageError(f"the study {study.name} has no independent parts: leave out --executor and --workers")
        executor = options.create_executor()
    out = options.out or Path("runs") / "studies" / study.name
    command = shlex.join(["lookalike", "study", *argv])
    finished = run_study(study, settings, scale, out, options.data, command, executor)
    if "--json" in flags:
        report = {
            "study": study.name,
            **finished.run,
            **describe_differences(study, settings, finished.result),
            "claims": [asdict(claim) for claim in finished.result.claims],
            "files": [str(path) for path in finished.files],
        }
        print(as_json(report))
    else:
        print_result(summarize(study, settings, finished.result, out, finished.run))
    return 0


def require_studies() -> None:
    """Raise a ``UsageError`` that says how to install the studies if they are missing."""
    if find_spec("lookalike_studies") is None:
        raise UsageError("the studies are a package of their own: in a checkout, pip install -e ./studies")


def _list_studies(as_json: bool) -> int:
    from lookalike_studies import STUDIES, get_study

    studies = [get_study(name) for name in STUDIES]
    if as_json:
        names = ("name", "title", "data", "choices", "source")
        print(json.dumps([{name: getattr(study, name) for name in names} for study in studies]))
        return 0
    width = max(len(study.name) for study in studies)
    for study in studies:
        line = f"{study.name:<{width}}  {study.title}"
        if study.needs_data:
            line += f" [--data: {study.data}]"
        elif study.data:
            line += f" [--data, optional: {study.data}]"
        print_result(line)
        if study.choices:
            print_result(f"{'':<{width}}  {study.choices}")
    return 0
