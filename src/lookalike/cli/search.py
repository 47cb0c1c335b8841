"""``lookalike search INDEX PICTURE -k N``: find pictures of an index that look like one of yours."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from lookalike._util.files import write_text
from lookalike._util.settings import setting
from lookalike.cli.arguments import JSON, REQUIRED, UsageError, parse
from lookalike.cli.interrupt import exit_on_interrupt
from lookalike.cli.output import print_result, require_new_file
from lookalike.data.names import as_text
from lookalike.inference.engine_name import ENGINE_HELP, EngineName
from lookalike.report import html
from lookalike.report.tables import Column, Line, Table, number, words

if TYPE_CHECKING:
    from PIL import Image

    from lookalike.index.querying import Result
    from lookalike.inference.model import TrainedModel

DESCRIPTION = """Find the pictures of an index that look most like one of yours, nearest first. --where filters before
the search: label=robin, or label in (robin, wren), year>=2020; a comma means and. --rerank refines the result:
expansion searches again with a mean of the query and its neighbours; augmentation and reciprocal reorder the best
hundred by their own neighbours."""
EXAMPLE = 'lookalike search mine.idx picture.jpg -k 10 --where "label in (robin, wren)"'
SIDE = 224  # pixels of a thumbnail


@dataclass
class SearchSettings:
    """Options of ``lookalike search``."""

    index: Path = setting(REQUIRED, "folder of an index, made by lookalike index")
    picture: Path | None = setting(None, "picture to search for")
    text: str | None = setting(None, "search for what a text describes; needs a model with a text tower, as of CLIP")
    also: list[Path] | None = setting(None, "more pictures of what to look for, separated by commas")
    unlike: list[Path] | None = setting(None, "pictures that the results should not look like, separated by commas")
    model: str | None = setting(None, "name of the model to search with, if the index has several; null: the first")
    k: int = setting(10, "number of pictures to find", least=1)
    where: str | None = setting(None, "filter, for example label=robin, year>=2020; null: all pictures")
    rerank: Literal["none", "expansion", "augmentation", "reciprocal"] = setting("none", "how to refine the result")
    confidence: float | None = setting(
        None, "show only results that are the same with this probability, e.g. 0.8", above=0, below=1
    )
    error_rate: float = setting(0.05, "how often it may say wrongly that nothing looks the same", above=0, below=1)
    group: bool = setting(False, "group near-duplicates under one result")
    diversity: float = setting(0.0, "prefer results that differ from each other: from 0 to below 1", least=0, below=1)
    include_query: bool = setting(False, "do not leave the query itself out of the results")
    explain: bool = setting(False, "show which regions of the two pictures match, for poolings that are weighted sums")
    html: Path | None = setting(None, "also write a page with the pictures, as one file")
    overwrite: bool = setting(False, "replace --html if it exists")
    device: str | None = setting(None, "cpu, cuda, ...; null: a GPU if there is one")
    engine: EngineName = setting("auto", ENGINE_HELP)
    store: str | None = setting(
        None, "address of the Milvus server that may receive LOOKALIKE_MILVUS_TOKEN; null: LOOKALIKE_MILVUS_URI"
    )


def run(argv: list[str]) -> int:
    """Run ``lookalike search`` with the words after its name, and return the exit code."""
    settings, flags = parse(
        SearchSettings, argv, "search", DESCRIPTION, EXAMPLE, positional=["index", "picture"], flags=JSON
    )
    if settings.text is not None and not settings.text.strip():
        raise UsageError("--text needs words")
    if settings.text is not None and settings.explain:
        raise UsageError("--explain matches the places of two pictures, and --text has none")
    if settings.picture is None and settings.text is None:
        hint = ": --unlike alone does not say what to look for" if settings.unlike else ""
        raise UsageError(f"missing PICTURE (picture to search for){hint}")
    positives, negatives = [*(settings.also or [])], settings.unlike or []
    if settings.picture is not None:
        positives.insert(0, settings.picture)
    for picture in (*positives, *negatives):
        if not picture.is_file():
            raise UsageError(f"there is no picture {picture}")
    if settings.html is not None:
        require_new_file(settings.html, "--html", settings.overwrite)
    with exit_on_interrupt():
        import numpy as np

        from lookalike import index
        from lookalike.index.suggestions import check_keys, nearest_labels

    suggestions: dict[str, str] = {}
    with (
        index.open(settings.index, settings.store) as collection,
        index.find_model(collection, settings.model) as idx,
        ThreadPoolExecutor(1) as thread,
    ):
        count = idx.count(settings.where)  # checks the filter before the model is loaded
        if count == 0 and settings.where and idx.count():
            check_keys(settings.where, idx.metadata_keys())
            suggestions = nearest_labels(settings.where, idx.labels())
        load = idx.trained_model if settings.text else idx.model
        loading = thread.submit(load, settings.device, settings.engine)
        info = idx.info()  # loads the search structures meanwhile
        model = loading.result()
        if settings.explain and not model.can_match:
            raise UsageError(
                "--explain needs a pooling that is a weighted sum over places, as gsp, average or attention: "
                f"this index has {model.settings()['pooling']['name']}"
            )
        if settings.text is not None and model.text_refusal is not None:
            raise UsageError(f"--text does not work with this index: {model.text_refusal}")
        calibration = index.load_calibration(idx)
        vectors = model.embed([*positives, *negatives])
        wanted = [vectors[: len(positives)]]
        if settings.text is not None:
            wanted.append(cast("TrainedModel", model).embed_text([settings.text]))
        query = index.compose_query(np.concatenate(wanted), vectors[len(positives) :], distance=idx.distance)
        copies: list[str] = []
        if not settings.include_query:
            for picture, vector in zip(positives, vectors, strict=False):
                copies += index.find_copies(idx, vector, picture.read_bytes())
        options = index.Options(
            k=settings.k,
            where=settings.where,
            rerank=settings.rerank,
            without=tuple(copies),
            group=settings.group,
            diversity=settings.diversity,
            confidence=settings.confidence,
            error_rate=settings.error_rate,
            one_picture=len(vectors) == 1 and settings.text is None,
        )
        found = index.find(idx, query, options, calibration)
        stamps = idx.stamps([result.hit.item.id for result in found.results])
        pairs = [_Pair(result, stamps.get(result.hit.item.id, "")) for result in found.results]
        if settings.explain:
            for pair in pairs:
                pair.explain(model, positives[0])
    report: dict[str, Any] = {
        "index": str(settings.index),
        "picture": None if settings.picture is None else str(settings.picture),
        "text": settings.text,
        "k": settings.k,
        "where": settings.where,
        "rerank": settings.rerank,
        "explained": settings.explain,
        "searched": count,
        "left_out": len(copies),
        "p_value": found.p_value,
        "error_rate": settings.error_rate,
        "nothing": found.nothing,
        "calibration": found.note,
        "kind": info["kind"],
        "recall@10": info["recall@10"],
        "hits": [pair.report() for pair in pairs],
    }
    if settings.html is not None:
        write_text(settings.html, _page(report, positives[0] if positives else None, pairs))
    if flags:
        print(json.dumps(report))
        return 0
    if found.nothing:
        print_result(_nothing(report))
    if pairs:
        print_result(_table(report, _notes(report)).text())
    elif settings.confidence is not None and count:
        print_result(f"no picture is the same with a probability of {100 * settings.confidence:g} % or more")
    else:
        print_result("no pictures found: none matches the filter")
    for label, suggestion in suggestions.items():
        print_result(f"no picture has the label {label}; did you mean {suggestion}?")
    if settings.html is not None:
        print_result(f"wrote {settings.html}")
    return 0


class _Pair:
    """A hit and, if asked for, how it matches the query."""

    def __init__(self, result: "Result", stamp: str) -> None:
        self.result, self.hit, self.stamp = result, result.hit, stamp
        self.match: dict[str, Any] | None = None
        self.drawing: Image.Image | None = None

    def explain(self, model: Any, query: Path) -> None:
        """Match the places; a file that can no longer be read has no match."""
        from lookalike.data.pictures import UnreadablePicture
        from lookalike.data.reading import read_picture
        from lookalike.inference.match import draw_match, match_report

        picture = read_picture(query)
        try:
            other = _read(self.hit.item.file, self.stamp)
        except UnreadablePicture:
            return
        match = model.match(query, self.hit.item.file)
        self.match = match_report(match, picture.size, other.size)
        self.drawing = draw_match(match, picture, other, SIDE)

    def report(self) -> dict[str, Any]:
        report = {**self.hit.item._asdict(), "distance": self.hit.distance, "probability": self.result.probability}
        report["duplicates"] = [item.path for item in self.result.duplicates]
        report["missing"] = self.hit.item.is_missing()
        if self.match is not None:
            report["match"] = self.match
        return report


def _table(report: dict[str, Any], notes: list[str]) -> Table:
    lines = []
    has_probabilities = any(hit["probability"] is not None for hit in report["hits"])
    has_labels = any(hit["label"] for hit in report["hits"])
    for hit in report["hits"]:
        distance = number(hit["distance"], digits=4, ranked=False)
        cells = [distance]
        if has_probabilities:
            cells.append(words(f"{_percent(hit)} %"))
        if has_labels:
            cells.append(words(hit["label"]))
        if report["explained"]:
            cells += [words(_regions(hit)), words(_inside(hit))]
        lines.append(Line([*cells, words(_with_copies(hit))]))
    columns = [Column("distance")]
    if has_probabilities:
        columns.append(Column("the same"))
    if has_labels:
        columns.append(Column("label", "left"))
    if report["explained"]:
        columns += [Column("regions"), Column("inside")]
    columns.append(Column("path", "left"))
    return Table(columns, lines, notes=notes)


def _percent(hit: dict[str, Any]) -> int:
    """P(same) in percent, never quite 0 or 100."""
    return min(99, max(1, round(100 * hit["probability"])))


def _with_copies(hit: dict[str, Any]) -> str:
    text: str = hit["path"]
    if hit["missing"]:
        text += " (the file is missing)"
    if hit["duplicates"]:
        text += f" (+ {len(hit['duplicates'])} alike)"
    return text


def _nothing(report: dict[str, Any]) -> str:
    return (
        "nothing here looks the same: a query with a picture of its kind here is as far from everything "
        f"in {max(0.1, 100 * report['p_value']):.1f} % of the cases at most"
    )


def _regions(hit: dict[str, Any]) -> str:
    if "match" not in hit:
        return ""
    shares = [region["share"] for region in hit["match"]["regions"]]
    if _in_percent(hit):
        return " + ".join(f"{100 * share:.0f}" for share in shares) + " %"
    return " + ".join(f"{share * hit['match']['cosine']:.2f}" for share in shares)


def _inside(hit: dict[str, Any]) -> str:
    if "match" not in hit:
        return ""
    share = hit["match"]["inside_share"]
    if _in_percent(hit):
        return f"{100 * share:.0f} %"
    return f"{share * hit['match']['cosine']:.2f}"


def _in_percent(hit: dict[str, Any]) -> bool:
    """Whether the shares of a match can be told in percent; else as amounts."""
    from lookalike.inference.match import adds_up

    return adds_up(hit["match"]["inside_share"], [region["share"] for region in hit["match"]["regions"]])


def _notes(report: dict[str, Any]) -> list[str]:
    notes = [f"the nearest of {report['searched']:,} pictures"]
    if report["where"]:
        notes[0] += f" with {report['where']}"
    if report["left_out"]:
        notes.append("the query itself is in the index and left out (--include-query shows it)")
    if report["hits"]:
        notes.append(report["calibration"])
    if report["rerank"] != "none":
        notes.append(f"reordered by {report['rerank']}; distances are to the query itself")
    if report["explained"]:
        notes.append("regions: the parts of the similarity from the strongest matching regions")
        notes.append("inside: the part from places off the outermost ring of the model's grid, in both pictures")
        if any("match" in hit and not _in_percent(hit) for hit in report["hits"]):
            notes.append("no % sign: parts of the cosine (1 - distance), of which other places take something away")
    if report["recall@10"] is not None:
        notes.append(f"approximate search: {report['kind']} finds {100 * report['recall@10']:.1f} % of the ten nearest")
    return notes


def _page(report: dict[str, Any], query: Path | None, pairs: list[_Pair]) -> str:
    thumbnails = []
    for rank, pair in enumerate(pairs, start=1):
        item = pair.hit.item
        caption = f"{rank}. {pair.hit.distance:.4f}  {item.label or item.file.name}"
        if pair.result.probability is not None:
            caption += f"  {_percent(pair.report())} % the same"
        if pair.result.duplicates:
            caption += f"  + {len(pair.result.duplicates)} alike"
        if pair.drawing is not None:
            caption += f"  matching {_regions(pair.report())}, inside {_inside(pair.report())}"
            thumbnails.append(_as_html(pair.drawing, item.path, caption))
        else:
            thumbnails.append(_thumbnail(item.file, item.path, caption, pair.stamp))
    title = "No pictures found"
    if pairs:
        title = f"The {len(pairs)} nearest"
    width = "24rem" if report["explained"] else "9.5rem"
    grid = f"display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,{width}),1fr));"
    grid += "gap:.6rem 1.2rem;align-items:start"
    heading = f"Pictures for: {report['text']}"
    shown = []
    if query is not None:
        heading = f"Pictures like {as_text(query.name)}"
        shown = [_thumbnail(query, as_text(str(query)), as_text(query.name))]
    return html.document(
        heading,
        [
            *shown,
            html.heading(title),
            *([html.paragraph(_nothing(report))] if report["nothing"] else []),
            *(html.paragraph(note, faint=True) for note in _notes(report)),
            f'<div style="{grid}">{"".join(thumbnails)}</div>',
            html.heading("Files"),
            _table(report, []).html(),
        ],
    )


def _thumbnail(file: Path, path: str, caption: str, stamp: str = "") -> str:
    """A thumbnail, or the reason why the file cannot be read or is not the one that was indexed."""
    from lookalike.data.pictures import UnreadablePicture

    try:
        image = _read(file, stamp, at_least=2 * SIDE)
    except UnreadablePicture as error:
        return html.paragraph(f"{caption}: {error.reason}", faint=True)
    image.thumbnail((SIDE, SIDE))
    return _as_html(image, path, caption)


def _read(file: Path, stamp: str, at_least: int | None = None) -> "Image.Image":
    """Read a picture that must still have the content that was indexed."""
    from lookalike.data.reading import read_picture
    from lookalike.index.folder import check_unchanged

    return read_picture(file, at_least=at_least, check=partial(check_unchanged, stamp=stamp))


def _as_html(image: "Image.Image", path: str, caption: str) -> str:
    return html.picture(html.as_jpeg(image), "jpeg", path, caption)
