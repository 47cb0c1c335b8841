"""``lookalike train DATA --out RUN``"""

import json
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Any

from lookalike.cli.arguments import JSON, UsageError, parse
from lookalike.cli.interrupt import exit_on_interrupt
from lookalike.training.run_folder import RunFolder, to_yaml
from lookalike.training.settings import Settings

DESCRIPTION = """Learn an embedding in which pictures of the same thing lie close together. DATA is a folder of class
folders, a CSV with the columns path and label, a benchmark, or glyphs. The run is left in the folder --out."""
EXAMPLE = "lookalike train my_pictures/ --out runs/mine --pooling gsp --steps 500"


def run(argv: list[str]) -> int:
    settings, flags = _parse(argv, None)
    if settings.resume and settings.out is not None and (settings.out / "settings.yaml").exists():
        settings, flags = _parse(argv, RunFolder(settings.out).read_settings())
    if "--print-config" in flags:
        print(to_yaml(settings, comments=True), end="")
        return 0
    if settings.out is None:
        raise UsageError("say where the run is to be left: --out RUN")
    with exit_on_interrupt():
        from lookalike.training.run import train

    figures = train(settings)
    print(json.dumps(figures) if "--json" in flags else _summary(figures, settings))
    return 0


def _parse(argv: list[str], previous: Settings | None) -> tuple[Settings, set[str]]:
    return parse(
        Settings,
        argv,
        prog="lookalike train",
        description=DESCRIPTION,
        example=EXAMPLE,
        positional=["data"],
        flags={**JSON, "--print-config": "print all settings with their explanations, as YAML for --config, and stop"},
        defaults=None if previous is None else asdict(previous),
    )


def _summary(figures: dict[str, Any], settings: Settings) -> str:
    out = Path(settings.out or "")
    lines = [f"{figures['ending']} after {figures['steps']} steps and {figures['seconds'] / 60:.1f} minutes"]
    best, start, backbone = figures["best"], figures["start"], figures["backbone"]
    if best:
        lines += [f"{'held out':<28}{'MAP@R':>8}{'P@1':>8}"]
        named = (
            ("backbone's own features", backbone),
            ("at the start", start),
            (f"best, step {figures['best_step']}", best),
        )
        lines += [f"{name:<28}{100 * row['MAP@R']:>8.2f}{100 * row['P@1']:>8.2f}" for name, row in named if row]
        monitor = figures["monitor"]
        if best[monitor] < backbone.get(monitor, 0):
            lines += ["the backbone's own features are better than that: more pictures or another loss may help"]
        elif figures["best_step"] == 0 and best[monitor] < 1:
            lines += ["nothing was better than the start, so the start is what is kept: try more steps or another --lr"]
    if figures.get("zero_shot_skipped"):
        lines += [f"{figures['zero_shot_skipped']:.1%} of the batches had a single class: no zero-shot loss in those"]
    lines += [f"the model is in {out}", f"next: lookalike evaluate {quote(str(out))} OTHER_PICTURES"]
    return "\n".join(lines)
