"""``lookalike search INDEX PICTURE -k N``: find pictures of an index that look like one of yours."""

import io
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from lookalike._util.files import write_text
from lookalike._util.settings import setting
from lookalike.cli.arguments import JSON, REQUIRED, UsageError, parse
from lookalike.cli.interrupt import exit_on_interrupt
from lookalike.cli.output import print_result, require_new_file
from lookalike.data.names import as_text
from lookalike.inference.engine_name import ENGINE_HELP, EngineName
from lookalike.report import html
from lookalike.report.tables import Column, Line, Table, number, words

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
    picture: Path = setting(REQUIRED, "picture to search for")
    k: int = setting(10, "number of pictures to find", least=1)
    where: str | None = setting(None, "filter, for example label=robin, year>=2020; null: all pictures")
    rerank: Literal["none", "expansion", "augmentation", "reciprocal"] = setting("none", "how to refine the result")
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
    if not settings.picture.is_file():
        raise UsageError(f"there is no picture {settings.picture}")
    if settings.html is not None:
        require_new_file(settings.html, "--html", settings.overwrite)
    with exit_on_interrupt():
        from lookalike import index
        from lookalike.index.suggestions import check_keys, metadata_keys, nearest_labels

    suggestions: dict[str, str] = {}
    with index.open(settings.index, settings.store) as idx:
        count = idx.count(settings.where)  # checks the filter before the model is loaded
        if count == 0 and settings.where and idx.count():
            check_keys(settings.where, metadata_keys(idx))
            suggestions = nearest_labels(settings.where, idx.labels())
        vectors = idx.model(settings.device, settings.engine).embed(settings.picture)
        (hits,) = index.search_reranked(idx, vectors, settings.k, settings.where, settings.rerank)
        info = idx.info()
        stamps = idx.stamps([hit.item.id for hit in hits])
    report: dict[str, Any] = {
        "index": str(settings.index),
        "picture": str(settings.picture),
        "k": settings.k,
        "where": settings.where,
        "rerank": settings.rerank,
        "searched": count,
        "kind": info["kind"],
        "recall@10": info["recall@10"],
        "hits": [{**hit.item._asdict(), "distance": hit.distance} for hit in hits],
    }
    if settings.html is not None:
        write_text(settings.html, _page(report, settings.picture, hits, stamps))
    if flags:
        print(json.dumps(report))
        return 0
    if hits:
        print_result(_table(report, _notes(report)).text())
    else:
        print_result("no pictures found: none matches the filter")
    for label, suggestion in suggestions.items():
        print_result(f"no picture has the label {label}; did you mean {suggestion}?")
    if settings.html is not None:
        print_result(f"wrote {settings.html}")
    return 0


def _table(report: dict[str, Any], notes: list[str]) -> Table:
    lines = []
    for hit in report["hits"]:
        distance = number(hit["distance"], digits=4, ranked=False)
        lines.append(Line([distance, words(hit["label"]), words(hit["path"])]))
    return Table([Column("distance"), Column("label", "left"), Column("path", "left")], lines, notes=notes)


def _notes(report: dict[str, Any]) -> list[str]:
    notes = [f"the nearest of {report['searched']:,} pictures"]
    if report["where"]:
        notes[0] += f" with {report['where']}"
    if report["rerank"] != "none":
        notes.append(f"reordered by {report['rerank']}; distances are to the query itself")
    if report["recall@10"] is not None:
        notes.append(f"approximate search: {report['kind']} finds {100 * report['recall@10']:.1f} % of the ten nearest")
    return notes


def _page(report: dict[str, Any], query: Path, hits: list[Any], stamps: dict[str, str]) -> str:
    thumbnails = []
    for rank, hit in enumerate(hits, start=1):
        caption = f"{rank}. {hit.distance:.4f}  {hit.item.label or hit.item.file.name}"
        thumbnails.append(_thumbnail(hit.item.file, hit.item.path, caption, stamps.get(hit.item.id, "")))
    title = "No pictures found"
    if hits:
        title = f"The {len(hits)} nearest"
    grid = "display:grid;grid-template-columns:repeat(auto-fill,minmax(11rem,1fr));gap:.6rem 1.2rem;align-items:start"
    return html.document(
        f"Pictures like {as_text(query.name)}",
        [
            _thumbnail(query, as_text(str(query)), as_text(query.name)),
            html.heading(title),
            *(html.paragraph(note, faint=True) for note in _notes(report)),
            f'<div style="{grid}">{"".join(thumbnails)}</div>',
            html.heading("Files"),
            _table(report, []).html(),
        ],
    )


def _thumbnail(file: Path, path: str, caption: str, stamp: str = "") -> str:
    """A thumbnail, or the reason why the file cannot be read or is not the one that was indexed."""
    from lookalike.data.pictures import UnreadablePicture
    from lookalike.data.reading import read_picture
    from lookalike.index.folder import check_unchanged

    try:
        image = read_picture(file, at_least=2 * SIDE, check=partial(check_unchanged, stamp=stamp))
    except UnreadablePicture as error:
        return html.paragraph(f"{caption}: {error.reason}", faint=True)
    image.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    image.save(content, "PNG")
    return html.picture(content.getvalue(), "png", path, caption)
