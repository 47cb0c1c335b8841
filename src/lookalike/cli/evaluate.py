"""``lookalike evaluate RUN DATA``"""

import json
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Literal

import numpy as np

from lookalike import data
from lookalike._util.checks import check_count
from lookalike._util.progress import Display
from lookalike._util.settings import setting
from lookalike._util.signals import StopRequest
from lookalike.cli.arguments import JSON, UsageError, parse
from lookalike.cli.loading import load_model
from lookalike.data.files import counted
from lookalike.data.pictures import BrokenData, Pictures
from lookalike.data.splits import lacking_role, measurable_classes
from lookalike.training.evaluation import as_lines, measure
from lookalike.training.run_folder import RunFolder

DESCRIPTION = """Measure a trained model on labelled pictures: P@1, P@R, MAP@R and R@K, exactly. Each picture is
compared with all others, or the queries with the gallery where the data say which is which. A query is left out of the
means, and counted in left_out, if there is no other picture of its class to be found."""
EXAMPLE = "lookalike evaluate runs/mine other_pictures/ --json"


@dataclass
class EvaluateSettings:
    run: Path | None = setting(None, "folder of a run, or the name of a backbone to measure its own averaged features")
    data: str | None = setting(None, "a folder of class folders, a CSV, a benchmark's folder or name:folder, or glyphs")
    split: Literal["auto", "train", "validation", "test", "held-out", "all"] = setting(
        "auto", "auto: test if the data have it, else all; held-out: the classes that the run held out"
    )
    ks: list[int] = setting(None, "K of R@K; null: 1, 2, 4, 8")
    strict: bool = setting(False, "fail if any picture cannot be read, instead of leaving it out")
    workers: int | None = setting(None, "processes that read pictures; null: by the number of cores")
    size: int | None = setting(None, "side of the input of a backbone given by name")
    device: str | None = setting(None, "cpu, cuda, ...; null: a GPU if there is one")

    def __post_init__(self) -> None:
        self.ks = self.ks or [1, 2, 4, 8]
        for k in self.ks:
            check_count("every one of ks", k)


def run(argv: list[str]) -> int:
    settings, flags = parse(
        EvaluateSettings,
        argv,
        prog="lookalike evaluate",
        description=DESCRIPTION,
        example=EXAMPLE,
        positional=["run", "data"],
        flags=JSON,
    )
    if settings.run is None or settings.data is None:
        raise UsageError("say which model on which data: lookalike evaluate RUN DATA")
    model = load_model(settings.run, settings.size, settings.device)
    pictures = data.load(settings.data, strict=settings.strict, progress=True)
    problems = [list(problem) for problem in pictures.problems]
    notes = pictures.notes
    pictures, split = _choose(pictures, settings.split, settings.run)
    if measurable_classes(pictures) == 0:
        fault = lacking_role(pictures) or "no query has another picture of its class, so nothing can be measured"
        raise BrokenData(f"{pictures.name} ({split}): {fault}")
    with StopRequest().listening() as stop, Display(stop).bar(len(pictures), "embedding") as tick:
        vectors = model.embed_table(pictures, workers=settings.workers, tick=tick)
    figures = measure(vectors, pictures, distance=model.distance, ks=tuple(settings.ks))
    seen = _seen_classes(settings.run, pictures)
    report: dict[str, Any] = {
        **figures,
        "data": pictures.name,
        "split": split,
        "pictures": len(pictures),
        "classes": len(pictures.classes),
        "classes_seen_in_training": seen,
        "unreadable": problems,
        "run": str(settings.run),
    }
    print(json.dumps(report) if flags else _text(report, figures, pictures, notes) + _beside(settings))
    return 0


def _choose(pictures: Pictures, split: str, run: Path) -> tuple[Pictures, str]:
    if split == "held-out":
        return pictures.with_classes(_held_out_classes(run, pictures)), split
    if split == "auto":
        split = "test" if pictures.splits is not None and "test" in pictures.splits else "all"
    return (pictures, split) if split == "all" else (pictures.split(split), split)


def _held_out_classes(run: Path, pictures: Pictures) -> set[str]:
    if not (run / "data.json").exists():
        raise UsageError(f"--split held-out goes with the folder of a run, which {run} is not: it has no data.json")
    trained = RunFolder(run).read_json("data.json")
    if trained["held_out"] is None:
        raise UsageError(f"the run in {run} held nothing out")
    held_out = set(trained["held_out"]["classes"])
    if held_out & set(trained["training"]["classes"]):
        raise UsageError(
            f"the run in {run} held out pictures of the classes it was trained on, and no class as a whole"
        )
    if not held_out & set(pictures.classes):
        raise UsageError(f"{pictures.name} has none of the classes that the run in {run} held out")
    return held_out & set(pictures.classes)


def _seen_classes(run: Path, pictures: Pictures) -> int | None:
    """How many classes have the name of a training class; None if the run does not say what it was trained on."""
    try:
        trained = RunFolder(run).read_json("data.json")
        return len(set(trained["training"]["classes"]) & set(pictures.classes))
    except (OSError, KeyError, TypeError, ValueError):
        return None


def _beside(settings: EvaluateSettings) -> str:
    """What to type for the figures of the backbone as it came, which training has to beat; "" if it came random."""
    from lookalike import models

    try:
        run = RunFolder(settings.run or Path()).read_settings()
    except (OSError, ValueError):
        return ""
    if run.weights != "auto" or models.starts_random(run.backbone) or settings.split == "held-out":
        return ""
    size = "" if run.size is None else f" --size {run.size}"
    split = "" if settings.split == "auto" else f" --split {settings.split}"
    command = f"lookalike evaluate {run.backbone} {quote(str(settings.data))}{size}{split}"
    return f"\nthe backbone alone, to compare: {command}"


def _text(report: dict[str, Any], figures: dict[str, float], pictures: Pictures, notes: tuple[str, ...]) -> str:
    lines = [f"{report['data']} ({report['split']}): {report['pictures']:,} pictures of {report['classes']:,} classes"]
    if report["classes_seen_in_training"] is not None:
        seen = report["classes_seen_in_training"]
        lines.append(
            "none of the classes was trained on"
            if seen == 0
            else f"{seen} classes have the name of a class that was trained on"
        )
    if pictures.roles is not None and pictures.has_roles:
        queries = int(np.isin(pictures.roles, ("query", "both")).sum())
        gallery = int(np.isin(pictures.roles, ("gallery", "both")).sum())
        lines.append(f"{queries:,} queries against a gallery of {gallery:,}")
    if figures["left_out"]:
        where = " in the gallery" if pictures.has_roles else ""
        lines.append(
            f"left out as queries: {figures['left_out']:,}, for there is no other picture of their class{where} to find"
        )
    if report["unreadable"]:
        lines.append(f"left out, {counted(len(report['unreadable']), 'picture')} that cannot be used:")
        lines += [f"  {name}: {reason}" for name, reason in report["unreadable"][:10]]
    shown = {name: value for name, value in figures.items() if name != "left_out"}
    return "\n".join([*lines, *notes, *as_lines(shown)])
