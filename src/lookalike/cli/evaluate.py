"""``lookalike evaluate RUN DATA``: measure a model on labelled pictures."""

import json
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Literal

import numpy as np

from lookalike import data
from lookalike._util.settings import setting
from lookalike.cli.arguments import JSON, REQUIRED, UsageError, parse
from lookalike.cli.loading import CACHE_HELP, VIEW_HELP, WEIGHTS_HELP, embed_pictures, load_model
from lookalike.cli.output import print_result, unreadable_lines
from lookalike.cli.precision import PRECISION_HELP, Precision, quantise_on_table
from lookalike.data.datasets import recall_ranks
from lookalike.data.pictures import BrokenData, Pictures
from lookalike.data.splits import lacking_role, measurable_classes
from lookalike.inference.engine_name import ENGINE_HELP, EngineName
from lookalike.objectives.libc import load_messages
from lookalike.retrieval import calibration
from lookalike.retrieval.wording import explain_metrics
from lookalike.training.checkpoint import RunFolder
from lookalike.training.evaluate import as_lines, measure, roles

DESCRIPTION = """Measure a model on labelled pictures: exact P@1, P@R, MAP@R and R@K. Every picture is compared with all
others, or the queries with the gallery if the data have these roles. A query without another picture of its class is
left out of the means and counted in left_out."""
EXAMPLE = "lookalike evaluate runs/mine other_pictures/ --json"


@dataclass
class EvaluateSettings:
    """Options of ``lookalike evaluate``."""

    run: Path = setting(REQUIRED, "folder of a run, or the name of a backbone to measure its averaged features")
    data: str = setting(REQUIRED, "a folder of class folders, a CSV, a data set as name:folder, or glyphs")
    split: Literal["auto", "train", "validation", "test", "held-out", "all"] = setting(
        "auto", "auto: test if the data have it, else all; held-out: the classes that the run held out"
    )
    ks: list[int] | None = setting(
        None, "K of R@K, separated by commas; null: 1,2,4,8, on sop 1,10,100,1000, on inshop 1,10,20,30,40", least=1
    )
    message_passing: int = setting(
        0, "k-reciprocal neighbours between which a run with LIBC passes messages (its authors: 7); 0: none", least=0
    )
    reliability: Path | None = setting(
        None, "also draw predicted against observed shares of pictures that are the same, as PNG or SVG"
    )
    strict: bool = setting(False, "fail if a picture cannot be read, instead of leaving it out")
    workers: int | None = setting(None, "processes that read pictures; null: by the number of cores", least=0)
    cache: str | None = setting(None, CACHE_HELP)
    view: Literal["whole", "crop"] = setting("crop", VIEW_HELP)
    weights: str = setting("auto", WEIGHTS_HELP)
    size: int | None = setting(None, "side of the input in pixels, for a backbone given by name", least=1)
    device: str | None = setting(None, "cpu, cuda, ...; null: a GPU if there is one")
    engine: EngineName = setting("auto", ENGINE_HELP)
    precision: Precision = setting("fp32", PRECISION_HELP)


def run(argv: list[str]) -> int:
    """Run ``lookalike evaluate`` with the words after its name, and return the exit code."""
    settings, flags = parse(
        EvaluateSettings, argv, "evaluate", DESCRIPTION, EXAMPLE, positional=["run", "data"], flags=JSON
    )
    model = load_model(settings.run, settings.weights, settings.size, settings.device, settings.engine, settings.view)
    messages = load_messages(settings.run) if settings.message_passing else None
    pictures = data.load(settings.data, strict=settings.strict, progress=True)
    problems = [list(problem) for problem in pictures.problems]
    notes = pictures.notes
    pictures, split = _select_split(pictures, settings.split, settings.run)
    require_measurable(pictures, f"{pictures.name} ({split})")
    if settings.precision == "int8":
        model = quantise_on_table(model, pictures)
    vectors = embed_pictures(model, pictures, settings.workers, settings.run, settings.cache)
    distance = model.distance
    if messages is not None:
        vectors, distance = messages.refine(vectors, settings.message_passing).numpy(), "cosine"
    figures = measure(vectors, pictures, distance=distance, ks=tuple(settings.ks or recall_ranks(pictures.name)))
    open_set = _measure_open_set(settings, vectors, pictures, distance, model.spec.sees_whole)
    report: dict[str, Any] = {
        **figures,
        "open_set": open_set,
        "data": pictures.name,
        "split": split,
        "pictures": len(pictures),
        "classes": len(pictures.classes),
        "classes_seen_in_training": _count_training_classes(settings.run, pictures),
        "unreadable": problems,
        "run": str(settings.run),
    }
    if flags:
        print(json.dumps(report))
    else:
        print_result(_summarise(report, figures, pictures, notes) + _backbone_hint(settings))
    return 0


def _measure_open_set(
    settings: EvaluateSettings, vectors: Any, pictures: Pictures, distance: str, sees_whole: bool
) -> dict[str, Any] | None:
    """Open-set figures, and how well the calibration of the run holds; None if there is only one class."""
    if len(pictures.classes) < 2:
        return None
    queries, gallery = roles(pictures)
    neighbourhoods = calibration.find_neighbourhoods(
        vectors, pictures.labels, distance=distance, queries=queries, gallery=gallery
    )
    result: dict[str, Any] = dict(calibration.open_set_metrics(neighbourhoods))
    stored = None
    if not settings.message_passing:
        name = calibration.WHOLE_FILE if sees_whole else calibration.FILE
        stored = calibration.Calibration.read(settings.run, name)
    if stored is not None:
        result |= calibration.measure(stored, neighbourhoods)
    if settings.reliability is not None:
        if stored is None:
            raise UsageError(f"--reliability needs a calibration: lookalike calibrate {settings.run} DATA makes one")
        from lookalike.report.run_plots import write_reliability

        write_reliability(settings.reliability, result["reliability"], result["calibration_error"])
    return result


def _open_set_lines(report: dict[str, Any]) -> list[str]:
    figures = report["open_set"]
    if figures is None:
        return []
    lines = [
        "open-set test by the distance of the nearest picture, with and without the query's class:",
        f"AUROC {100 * figures['AUROC']:.1f}, FPR at 95 % recall {100 * figures['FPR@95']:.1f} %, "
        f"P@1 of the nearest 90 % of the queries {100 * figures['P@1@90']:.1f}",
    ]
    if "calibration_error" in figures:
        lines.append(
            f"P(same | distance) is off by {100 * figures['calibration_error']:.1f} %; at an error rate of 5 %, "
            f'"nothing here looks the same" is said wrongly for {100 * figures["nothing_said"]:.1f} % '
            f"and rightly for {100 * figures['nothing_said_rightly']:.1f} %"
        )
    else:
        lines.append("no calibration: this model has none, so distances are no probabilities")
    return lines


def require_measurable(pictures: Pictures, name: str) -> None:
    """Check that at least one query has another picture of its class.

    Raises:
        BrokenData: If nothing can be measured.
    """
    if measurable_classes(pictures) == 0:
        fault = lacking_role(pictures) or "no query has another picture of its class, so nothing can be measured"
        raise BrokenData(f"{name}: {fault}")


def _select_split(pictures: Pictures, split: str, run: Path) -> tuple[Pictures, str]:
    if split == "held-out":
        return pictures.with_classes(_held_out_classes(run, pictures)), split
    if split == "auto" and pictures.splits is not None and "test" in pictures.splits:
        split = "test"
    if split in ("auto", "all"):
        return pictures, "all"
    return pictures.split(split), split


def _held_out_classes(run: Path, pictures: Pictures) -> set[str]:
    if not (run / "data.json").exists():
        raise UsageError(f"--split held-out needs the folder of a run; {run} has no data.json")
    trained = RunFolder(run).read_json("data.json")
    if trained["held_out"] is None:
        raise UsageError(f"the run in {run} held out no classes")
    held_out = set(trained["held_out"]["classes"])
    if held_out & set(trained["training"]["classes"]):
        raise UsageError(f"the run in {run} held out pictures of its training classes, not whole classes")
    if not held_out & set(pictures.classes):
        raise UsageError(f"{pictures.name} has none of the classes that the run in {run} held out")
    return held_out & set(pictures.classes)


def _count_training_classes(run: Path, pictures: Pictures) -> int | None:
    """How many classes have the name of a training class; None if the run does not list its classes."""
    try:
        trained = RunFolder(run).read_json("data.json")
        return len(set(trained["training"]["classes"]) & set(pictures.classes))
    except (OSError, KeyError, TypeError, ValueError):
        return None


def _backbone_hint(settings: EvaluateSettings) -> str:
    """The command that measures the backbone before training; "" if it had random weights."""
    from lookalike import models

    try:
        run = RunFolder(settings.run).read_settings()
    except (OSError, ValueError):
        return ""
    if models.starts_random(run.backbone, run.weights) or settings.split == "held-out":
        return ""
    command = f"lookalike evaluate {run.backbone} {quote(settings.data)}"
    if run.weights != "auto":
        command += f" --weights {quote(run.weights)}"
    if run.size is not None:
        command += f" --size {run.size}"
    if settings.split != "auto":
        command += f" --split {settings.split}"
    return f"\nto compare with the backbone alone: {command}"


def _summarise(report: dict[str, Any], figures: dict[str, float], pictures: Pictures, notes: tuple[str, ...]) -> str:
    lines = [f"{report['data']} ({report['split']}): {report['pictures']:,} pictures of {report['classes']:,} classes"]
    training_classes = report["classes_seen_in_training"]
    if training_classes == 0:
        lines.append("no class was seen in training")
    elif training_classes is not None:
        lines.append(f"{training_classes} classes have the name of a training class")
    if pictures.roles is not None and pictures.has_roles:
        queries = int(np.isin(pictures.roles, ("query", "both")).sum())
        gallery = int(np.isin(pictures.roles, ("gallery", "both")).sum())
        lines.append(f"{queries:,} queries against a gallery of {gallery:,}")
    if figures["left_out"]:
        where = ""
        if pictures.has_roles:
            where = " in the gallery"
        lines.append(f"queries left out: {figures['left_out']:,} (no other picture of their class{where})")
    lines += unreadable_lines(report["unreadable"])
    metrics = dict(figures)
    del metrics["left_out"]
    explained = ["in percent:", *explain_metrics(metrics)]
    return "\n".join([*lines, *notes, *as_lines(metrics), *explained, *_open_set_lines(report)])
