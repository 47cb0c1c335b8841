"""The page of a training run, run.html: what training has done, its curve, and neighbours of held-out pictures."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from lookalike._util.checksums import write_checked
from lookalike._util.files import write_text
from lookalike._util.progress import format_duration
from lookalike.data.pictures import UnreadablePicture
from lookalike.inference.feature_store import NotCacheable
from lookalike.report import html, theme
from lookalike.report.held_out import HeldOut, read_held_out
from lookalike.report.run_plots import draw_reliability, plot_constraint, plot_loss, plot_metrics
from lookalike.report.tables import Column, Line, Table, number, words
from lookalike.retrieval.calibration import Calibration
from lookalike.retrieval.wording import explain_metrics
from lookalike.training.checkpoint import RunFolder
from lookalike.training.settings import Settings

FILE = "run.html"
METRICS = ("MAP@R", "P@R", "P@1", "R@2", "R@4", "R@8")  # R@1 is P@1
DRAWN, WORST = 6, 3  # queries to show: random ones, and those with the fewest right neighbours
SHOWN = 5  # neighbours of a query
SIDE = 120  # pixels of a thumbnail
DARKEST = 0.25  # brightness of a place without weight
STYLE = """
.sentence { font-size: 1.15rem }
.plots { display: flex; flex-wrap: wrap; gap: 0 2rem }
.plots figure { margin: .6rem 0; overflow: visible; max-width: 100% }
.example { padding: .7rem 0; border-top: 1px solid var(--rule) }
.example h3 { margin: 0 }
.row { display: grid; grid-template-columns: repeat(auto-fill, minmax(6rem, 1fr)); gap: .6rem; margin: .3rem 0;
  max-width: 58rem }
.row figure { margin: 0; overflow: visible }
.row img { width: 100% !important; height: 6.2rem; object-fit: contain; background: var(--band) !important;
  border: 3px solid transparent; margin: 0 }
.row figcaption { font-size: .75rem; line-height: 1.3; overflow-wrap: anywhere; position: static }
.same img { border-color: #2b8a3e !important } .other img { border: 3px dashed #c92a2a !important }
.when { font-size: .85rem; color: var(--faint); margin: .5rem 0 0 }
"""


def write_run_page(run: Path, path: Path | None = None, say: Callable[[str], None] = print) -> str:
    """Write the page of a run, completely or not at all.

    Args:
        run: Folder of the run.
        path: File to write; None: ``run.html`` in the folder.
        say: Receives a note if the held-out pictures or the model can no longer be read.

    Returns:
        One sentence on what training has done; "" if that is not known.

    Raises:
        ValueError: If the folder has no finished run.
    """
    folder = RunFolder(run)
    settings = folder.read_settings()
    if not (run / "figures.json").exists():
        raise ValueError(f"the run in {run} is not finished: lookalike train --out {quote(str(run))} --resume ends it")
    figures = folder.read_json("figures.json")
    held_out = None
    try:
        held_out = read_held_out(run, settings)
        examples = _examples(held_out) if held_out is not None else []
    except (ValueError, OSError, UnreadablePicture, NotCacheable) as error:
        say(f"{FILE} has no pictures: {error}")
        examples = [html.heading("Neighbours of held-out pictures"), html.paragraph(f"No pictures: {error}")]
    sentence = held_out.sentence() if held_out is not None else ""
    parts = [f"<style>{STYLE}</style>"]
    if sentence:
        parts.append(f'<p class="sentence">{escape(sentence)}</p>')
    parts += _summary(figures, held_out, run)
    parts += _curves(folder.read_metrics(), figures)
    parts += examples
    parts += _calibration(run)
    parts += [html.heading("Next"), html.code("\n".join(next_commands(run)))]
    parts += [html.heading("Settings"), html.pairs(_settings(settings))]
    page = html.document(f"Run {run.resolve().name}", parts)
    if path is None or path.resolve() == (run / FILE).resolve():
        write_checked(run / FILE, page)
    else:
        write_text(path, page)
    return sentence


def next_commands(run: Path) -> list[str]:
    """What to do with a trained model."""
    name = quote(str(run))
    commands = {
        f"lookalike evaluate {name} OTHER_PICTURES": "measure it on pictures that it has not seen",
        f"lookalike index {name} PICTURES --out mine.idx": "make a folder searchable",
        "lookalike serve mine.idx": "search it in a browser",
    }
    width = max(map(len, commands))
    return [f"{command:<{width}}  # {purpose}" for command, purpose in commands.items()]


def verdict(figures: dict[str, Any]) -> str:
    """What training has gained; "" if nothing was measured."""
    best, backbone, monitor = figures["best"], figures["backbone"], figures["monitor"]
    if not best:
        return ""
    if best[monitor] < backbone.get(monitor, 0):
        return "The backbone alone is better than the trained model: more pictures or another loss may help."
    if figures["best_step"] == 0 and best[monitor] < 1:
        return "No step was better than the start, so the model is unchanged. Try more steps or another --lr."
    return ""


def metrics_table(figures: dict[str, Any]) -> Table:
    """Metrics on the held-out pictures: of the backbone alone, of the untrained head, and of the best step."""
    names = [name for name in METRICS if name in figures["best"]]
    lines = []
    titles = ("backbone alone", "untrained head", f"best, step {figures['best_step']}")
    for title, key in zip(titles, ("backbone", "start", "best"), strict=True):
        metrics = figures[key]
        if metrics:
            lines.append(Line([words(title), *(number(100 * metrics[name]) for name in names)]))
    columns = [Column("held out, %", "left"), *map(Column, names)]
    return Table(columns, lines, notes=explain_metrics(names))


def _summary(figures: dict[str, Any], held_out: HeldOut | None, run: Path) -> list[str]:
    parts = []
    if verdict(figures):
        parts.append(html.paragraph(verdict(figures)))
    about = RunFolder(run).read_json("data.json")
    training = about["training"]
    text = f"Trained on {training['pictures']:,} pictures of {len(training['classes']):,} classes of {about['name']}"
    if about["held_out"] is not None:
        text += f", measured on {about['held_out']['pictures']:,} others of {len(about['held_out']['classes']):,}"
        unseen = not set(about["held_out"]["classes"]) & set(training["classes"])
        text += " unseen classes" if unseen else " classes"
    duration = format_duration(figures["seconds"])
    text += f". {figures['ending'].capitalize()}: {figures['steps']:,} steps in {duration}, with reading and features."
    parts.append(html.paragraph(text, faint=True))
    if held_out is not None and held_out.total > len(held_out.pictures):
        sample = f"The sentence and the neighbours are of {len(held_out.pictures):,} of {held_out.total:,} pictures."
        parts.append(html.paragraph(sample, faint=True))
    if figures["best"]:
        parts.append(metrics_table(figures).html())
        parts.append(
            html.paragraph(
                "The best step was chosen by these figures, so they flatter the model a little: lookalike evaluate "
                "measures it on other pictures.",
                faint=True,
            )
        )
    else:
        parts.append(html.paragraph("Nothing was held out, so nothing was measured: the last weights were kept."))
    return parts


def _curves(rows: list[dict[str, str]], figures: dict[str, Any]) -> list[str]:
    plots = []
    curve = plot_metrics(rows, figures["backbone"], figures["best_step"])
    if curve is not None:
        caption = f"Metrics on the held-out pictures; grey: the best step, {figures['best_step']}"
        plots.append(html.plot(theme.as_bytes(curve, "svg"), "Learning curve", caption))
    loss = plot_loss(rows)
    if loss is not None:
        plots.append(html.plot(theme.as_bytes(loss, "svg"), "Loss over the steps", "Loss of the training batches"))
    constraint = plot_constraint(figures.get("problems", []))
    if constraint is not None:
        caption = "Chance constraint at the solution of every problem of CCP"
        plots.append(html.plot(theme.as_bytes(constraint, "svg"), "Violated pairs by problem", caption))
    if not plots:
        return []
    return [html.heading("Learning curve"), f'<div class="plots">{"".join(plots)}</div>']


def _calibration(run: Path) -> list[str]:
    calibration = Calibration.read(run)
    if calibration is None:
        return []
    drawn = draw_reliability(calibration.reliability, calibration.error)
    caption = f"P(same | distance) is {calibration.describe()}."
    plot = html.plot(theme.as_bytes(drawn, "svg"), "Predicted against observed shares of the same class", caption)
    return [html.heading("What a distance means"), f'<div class="plots">{plot}</div>']


def _settings(settings: Settings) -> dict[str, str]:
    shown = {}
    for name, value in asdict(settings).items():
        if value not in (None, "", {}, False, "auto"):
            shown[name] = json.dumps(value, default=str) if isinstance(value, (dict, tuple)) else str(value)
    return shown


def _examples(held_out: HeldOut) -> list[str]:
    """Neighbours of some queries after and before training."""
    drawn, worst = _choose(held_out)
    parts = [html.heading("Neighbours of held-out pictures")]
    intro = "Random queries with their nearest pictures. ✓ and a solid frame: the same class. ✗ and dashes: another."
    if held_out.model.has_weights:
        intro += " Beside the query, the brightest places have the most weight in its vector."
    parts.append(html.paragraph(intro))
    parts += [_example(held_out, row) for row in drawn]
    if len(worst):
        parts.append(html.heading("Where it fails most"))
        parts.append(html.paragraph("The queries with the fewest right neighbours, one per class."))
        parts += [_example(held_out, row) for row in worst]
    return parts


def _choose(held_out: HeldOut) -> tuple[list[int], list[int]]:
    """Rows of queries to show: random ones, then the worst of the rest, from as many classes as possible."""
    labels = held_out.pictures.labels[held_out.queries]
    order = np.random.default_rng(0).permutation(len(labels))
    drawn = _of_different_classes(order, labels, DRAWN)
    right = held_out.right(held_out.after)
    by_right = order[np.argsort(right[order], kind="stable")]
    failing = [row for row in by_right.tolist() if right[row] < held_out.k and row not in drawn]
    return drawn, _of_different_classes(failing, labels, WORST)


def _of_different_classes(rows: Sequence[int] | NDArray[np.int64], labels: NDArray[np.int64], count: int) -> list[int]:
    """The first rows of different classes; the same class again only if there are too few."""
    first, again = [], []
    seen = set()
    for row in map(int, rows):
        if labels[row] in seen:
            again.append(row)
        else:
            first.append(row)
            seen.add(labels[row])
    return (first + again)[:count]


def _example(held_out: HeldOut, row: int) -> str:
    pictures, k = held_out.pictures, held_out.k
    query = int(held_out.queries[row])
    image = pictures.image(query)
    name = pictures.classes[pictures.labels[query]]
    cells = [_cell(image, "query", "")]
    if held_out.model.has_weights:
        cells.append(_cell(_spotlight(held_out.model, image), "where it looks", ""))
    right_after = held_out.right(held_out.after)[row]
    right_before = held_out.right(held_out.before)[row]
    return (
        f'<div class="example"><h3>{escape(name)}</h3>'
        f'<p class="when">after training: {right_after} of the {k} nearest are right</p>'
        f'<div class="row">{"".join(cells)}{_neighbours(held_out, query, held_out.after[row])}</div>'
        f'<p class="when">before training: {right_before} of {k}</p>'
        f'<div class="row">{_neighbours(held_out, query, held_out.before[row])}</div></div>'
    )


def _neighbours(held_out: HeldOut, query: int, nearest: NDArray[np.int64]) -> str:
    pictures = held_out.pictures
    cells = []
    for position in nearest[:SHOWN].tolist():
        label = pictures.classes[pictures.labels[position]]
        if pictures.labels[position] == pictures.labels[query]:
            cells.append(_cell(pictures.image(position), f"✓\u00a0{label}", "same"))
        else:
            cells.append(_cell(pictures.image(position), f"✗\u00a0{label}", "other"))
    return "".join(cells)


def _cell(image: Image.Image, caption: str, kind: str) -> str:
    picture = html.image(image, caption, SIDE)
    return f'<figure class="{kind}">{picture}<figcaption>{escape(caption)}</figcaption></figure>'


def _spotlight(model: Any, image: Image.Image) -> Image.Image:
    """The picture, darkened where the pooling has little weight."""
    weights = model.explain(image).weights
    brightness = DARKEST + (1 - DARKEST) * weights / max(float(weights.max()), 1e-12)
    pixels = np.asarray(image.convert("RGB"), np.float32) * brightness[..., None]
    return Image.fromarray(pixels.astype(np.uint8))
