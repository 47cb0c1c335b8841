"""``lookalike train DATA --out RUN``: learn an embedding from labelled pictures."""

import json
import os
import time
from contextlib import ExitStack
from dataclasses import asdict, fields
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Any

from lookalike._util.progress import format_duration
from lookalike._util.signals import StopRequest
from lookalike.cli.argument_errors import option_name
from lookalike.cli.arguments import JSON, UsageError, parse
from lookalike.cli.interrupt import exit_on_interrupt
from lookalike.cli.output import print_result, print_status
from lookalike.training.checkpoint import RunFolder, to_yaml
from lookalike.training.settings import Settings

if TYPE_CHECKING:
    from lookalike.retrieval.calibration import Calibration

DESCRIPTION = """Learn an embedding in which pictures of the same class are close together. DATA is a folder of class
folders, a CSV with the columns path and label, a known data set, or glyphs. The run is written to the folder --out."""
EXAMPLE = "lookalike train my_pictures/ --out runs/mine --pooling gsp --steps 500"
COMMON = ["data", "out", "pooling", "loss", "backbone", "weights", "freeze_backbone", "size", "dim", "steps"]
COMMON += ["batch_size", "lr", "seed", "resume", "device"]
# Left out of the command that lookalike tune prints.
NOT_TRAINED = {"data", "out", "resume", "seed", "check", "strict", "cache", "workers", "engine", "view"}


def run(argv: list[str]) -> int:
    """Run ``lookalike train`` with the words after its name, and return the exit code."""
    started = time.monotonic()
    settings, flags = parse_train(argv)
    if settings.resume and settings.out is not None and (settings.out / "settings.yaml").exists():
        settings, flags = parse_train(argv, RunFolder(settings.out).read_settings())
    if "--print-config" in flags:
        print(to_yaml(settings, comments=True), end="")
        return 0
    if settings.out is None:
        raise UsageError("missing --out RUN (folder for the run)")
    with exit_on_interrupt():
        import lightning_fabric  # noqa: F401  # slow to load, and needed at once

        from lookalike.retrieval.calibration import Calibration
        from lookalike.training.run import train

    began = time.monotonic()
    figures = train(settings)
    ended = time.monotonic()
    if os.environ.get("RANK", "0") != "0":  # torchrun: the first process writes
        return 0
    calibration = _calibrate_whole(settings.out) or Calibration.read(settings.out)
    sentence = _write_page(settings.out)
    if "--json" in flags:
        print(json.dumps(figures))
    else:
        seconds = figures["seconds"] + (began - started) + (time.monotonic() - ended)  # with imports and page
        print_result(_summarise(figures, seconds, settings.out, calibration, sentence))
    return 0


def _calibrate_whole(run: Path) -> "Calibration | None":
    """Calibrate for whole pictures, as an index sees them. The run is complete without it: a failure is a line."""
    from lookalike._util.progress import Display
    from lookalike.training.held_out import calibrate_whole

    with StopRequest().listening() as stop, ExitStack() as stack:
        try:
            return calibrate_whole(run, lambda count, name: stack.enter_context(Display(stop).bar(count, name)))
        except (ValueError, OSError) as error:
            print_status(f"whole pictures could not be calibrated, the model is complete: {error}")
            return None


def _write_page(run: Path) -> str | None:
    """Write run.html. The run is complete without it, so a failure is a line. None: there is no page."""
    from lookalike.report.run_page import write_run_page

    try:
        return write_run_page(run, say=print_status)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print_status(f"run.html could not be written, the model is complete: {error}")
        return None


def parse_train(argv: list[str], previous: Settings | None = None) -> tuple[Settings, set[str]]:
    """Parse the options of ``lookalike train``."""
    defaults = None
    if previous is not None:
        defaults = asdict(previous)
    return parse(
        Settings,
        argv,
        "train",
        DESCRIPTION,
        EXAMPLE,
        positional=["data"],
        flags={**JSON, "--print-config": "print all settings as commented YAML for --config, and exit"},
        defaults=defaults,
        common=COMMON,
    )


def train_command(settings: Settings, data: str) -> str:
    """Return the command line that trains with ``settings`` on ``data``."""
    words = ["lookalike", "train", data, "--out", "RUN"]
    for name, value in changed_settings(settings).items():
        option = option_name(name)
        if value is True:
            words.append(option)
        elif value is False:
            words.append(f"--no-{option[2:]}")
        elif isinstance(value, dict):
            for key, inner in value.items():
                words += [f"{option}.{key}", _as_word(inner)]
        elif isinstance(value, list):
            words += [option, ",".join(map(str, value))]
        else:
            words += [option, _as_word(value)]
    return join(words)


def changed_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings of training that differ from their defaults, as YAML values."""
    changed: dict[str, Any] = {}
    defaults = Settings()
    for field in fields(Settings):
        value = getattr(settings, field.name)
        if field.name in NOT_TRAINED or value == getattr(defaults, field.name):
            continue
        if isinstance(value, tuple):
            value = list(value)
        changed[field.name] = value
    return changed


def _as_word(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _summarise(
    figures: dict[str, Any], seconds: float, out: Path, calibration: "Calibration | None", sentence: str | None
) -> str:
    from lookalike.report.run_page import metrics_table, next_commands, verdict

    lines = [f"{figures['ending']} after {figures['steps']} steps and {format_duration(seconds)}, everything included"]
    if figures["best"]:
        lines.append(metrics_table(figures).text())
    if sentence:
        lines.append(sentence)
    if verdict(figures):
        lines.append(verdict(figures))
    if figures.get("zero_shot_skipped"):
        lines.append(f"{figures['zero_shot_skipped']:.1%} of the batches had one class and no zero-shot loss")
    if calibration is None:
        lines.append("distances are not calibrated: that needs 20 held-out pictures of 2 classes")
    else:
        lines.append(f"P(same | distance) is {calibration.describe()}")
    lines.append(f"the model is in {out}")
    if sentence is not None:
        lines.append(f"look at it: {out / 'run.html'}")
    first, *others = next_commands(out)
    return "\n".join([*lines, f"next: {first}", *(f"      {command}" for command in others)])
