"""``lookalike train DATA --out RUN``: learn an embedding from labelled pictures."""

import json
from dataclasses import asdict, fields
from pathlib import Path
from shlex import join, quote
from typing import Any

from lookalike.cli.argument_errors import option_name
from lookalike.cli.arguments import JSON, UsageError, parse
from lookalike.cli.interrupt import exit_on_interrupt
from lookalike.cli.output import print_result
from lookalike.training.checkpoint import RunFolder, to_yaml
from lookalike.training.settings import Settings

DESCRIPTION = """Learn an embedding in which pictures of the same class are close together. DATA is a folder of class
folders, a CSV with the columns path and label, a known data set, or glyphs. The run is written to the folder --out."""
EXAMPLE = "lookalike train my_pictures/ --out runs/mine --pooling gsp --steps 500"
# Not part of a setting that lookalike tune found.
NOT_TRAINED = {"data", "out", "resume", "seed", "check", "strict", "cache", "workers", "engine"}


def run(argv: list[str]) -> int:
    """Run ``lookalike train`` with the words after its name, and return the exit code."""
    settings, flags = parse_train(argv)
    if settings.resume and settings.out is not None and (settings.out / "settings.yaml").exists():
        settings, flags = parse_train(argv, RunFolder(settings.out).read_settings())
    if "--print-config" in flags:
        print(to_yaml(settings, comments=True), end="")
        return 0
    if settings.out is None:
        raise UsageError("missing --out RUN (folder for the run)")
    with exit_on_interrupt():
        from lookalike.training.run import train

    figures = train(settings)
    if "--json" in flags:
        print(json.dumps(figures))
    else:
        print_result(_summarise(figures, settings.out))
    return 0


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


def _summarise(figures: dict[str, Any], out: Path) -> str:
    lines = [f"{figures['ending']} after {figures['steps']} steps and {figures['seconds'] / 60:.1f} minutes"]
    if figures["best"]:
        lines += _metrics_lines(figures)
    if figures.get("zero_shot_skipped"):
        lines.append(f"{figures['zero_shot_skipped']:.1%} of the batches had one class and no zero-shot loss")
    lines += [f"the model is in {out}", f"next: lookalike evaluate {quote(str(out))} OTHER_PICTURES"]
    return "\n".join(lines)


def _metrics_lines(figures: dict[str, Any]) -> list[str]:
    lines = [f"{'held out':<28}{'MAP@R':>8}{'P@1':>8}"]
    best, backbone, monitor = figures["best"], figures["backbone"], figures["monitor"]
    best_title = f"best, step {figures['best_step']}"
    for title, metrics in (("backbone alone", backbone), ("before training", figures["start"]), (best_title, best)):
        if metrics:
            lines.append(f"{title:<28}{100 * metrics['MAP@R']:>8.2f}{100 * metrics['P@1']:>8.2f}")
    if best[monitor] < backbone.get(monitor, 0):
        lines.append("the backbone alone is better: more pictures or another loss may help")
    elif figures["best_step"] == 0 and best[monitor] < 1:
        lines.append("training did not improve the model, which stays as it was: try more steps or another --lr")
    return lines
