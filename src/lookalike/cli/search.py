"""``lookalike search IDX picture.jpg -k 10``"""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lookalike._util.checks import check_count
from lookalike._util.files import require_writable, write_text
from lookalike._util.settings import setting
from lookalike.cli.arguments import JSON, UsageError, parse
from lookalike.cli.interrupt import exit_on_interrupt
from lookalike.data.names import as_text
from lookalike.report import html
from lookalike.report.tables import Column, Line, Table, number, words

DESCRIPTION = """The pictures of an index that look most like one of yours, nearest first. A filter is applied before
the nearest are taken: label=robin, or label in (robin, wren), year>=2020, where a comma means and. Re-ranking looks
twice: expansion searches again with the query drawn towards its neighbours, augmentation and reciprocal order the best
hundred anew by their own neighbours."""
EXAMPLE = 'lookalike search mine.idx picture.jpg -k 10 --where "label in (robin, wren)"'
SIDE = 224  # pixels of a thumbnail


@dataclass
class SearchSettings:
    index: Path | None = setting(None, "folder of an index, as lookalike index makes it")
    picture: Path | None = setting(None, "the picture to search for")
    k: int = setting(10, "how many to find")
    where: str | None = setting(None, "a filter: label=robin, path>=..., year>=2020; null: all pictures")
    rerank: Literal["none", "expansion", "augmentation", "reciprocal"] = setting("none", "how to look twice")
    html: Path | None = setting(None, "write a page with the pictures, in one file")
    overwrite: bool = setting(False, "replace --html if it exists")
    device: str | None = setting(None, "cpu, cuda, ...; null: a GPU if there is one")

    def __post_init__(self) -> None:
        check_count("k", self.k)


def run(argv: list[str]) -> int:
    settings, flags = parse(
        SearchSettings,
        argv,
        prog="lookalike search",
        description=DESCRIPTION,
        example=EXAMPLE,
        positional=["index", "picture"],
        flags=JSON,
    )
    if settings.index is None or settings.picture is None:
        raise UsageError("say in which index and what for: lookalike search IDX picture.jpg")
    if not settings.picture.is_file():
        raise UsageError(f"there is no picture {settings.picture}")
    if settings.html is not None:
        require_writable(settings.html)
        if settings.html.is_dir() or (settings.html.exists() and not settings.overwrite):
            raise UsageError(f"{settings.html} exists: choose another --html, or --overwrite")
    with exit_on_interrupt():
        from lookalike import index
        from lookalike.index.suggestions import check_keys, metadata_keys, nearest_labels

    meant: dict[str, str] = {}
    with index.open(settings.index) as idx:
        count = idx.count(settings.where)  # a filter that cannot be read is found before the model is loaded
        if count == 0 and settings.where and idx.count():
            check_keys(settings.where, metadata_keys(idx))
            meant = nearest_labels(settings.where, idx.labels())
        vectors = idx.model(settings.device).embed(settings.picture)
        (hits,) = index.search_reranked(idx, vectors, settings.k, settings.where, settings.rerank)
        kind, recall = (idx.info()[name] for name in ("kind", "recall@10"))
    report: dict[str, Any] = {
        "index": str(settings.index),
        "picture": str(settings.picture),
        "k": settings.k,
        "where": settings.where,
        "rerank": settings.rerank,
        "searched": count,
        "kind": kind,
        "recall@10": recall,
        "hits": [{**hit.item._asdict(), "distance": hit.distance} for hit in hits],
    }
    if settings.html is not None:
        write_text(settings.html, _page(report, settings.picture, hits))
    if flags:
        print(json.dumps(report))
        return 0
    print(
        _table(report, _notes(report)).text()
        if hits
        else "nothing was found: no picture of the index fulfils the filter"
    )
    for label, near in meant.items():
        print(f"no picture has the label {label}; did you mean {near}?")
    if settings.html is not None:
        print(f"the pictures are in {settings.html}")
    return 0


def _table(report: dict[str, Any], notes: list[str]) -> Table:
    lines = [
        Line([number(hit["distance"], digits=4, ranked=False), words(hit["label"]), words(hit["path"])])
        for hit in report["hits"]
    ]
    return Table([Column("distance"), Column("label", "left"), Column("path", "left")], lines, notes=notes)


def _notes(report: dict[str, Any]) -> list[str]:
    notes = [f"the nearest of {report['searched']:,} pictures"]
    if report["where"]:
        notes[0] += f" with {report['where']}"
    if report["rerank"] != "none":
        notes.append(f"in the order of re-ranking by {report['rerank']}; the distances are those to the picture itself")
    if report["recall@10"] is not None:
        notes.append(f"{report['kind']} finds {100 * report['recall@10']:.1f} % of the ten nearest")
    return notes


def _page(report: dict[str, Any], query: Path, hits: list[Any]) -> str:
    figures = []
    for place, hit in enumerate(hits, start=1):
        caption = f"{place}. {hit.distance:.4f}  {hit.item.label or hit.item.file.name}"
        figures.append(_figure(hit.item.file, hit.item.path, caption))
    grid = "display:grid;grid-template-columns:repeat(auto-fill,minmax(11rem,1fr));gap:.6rem 1.2rem;align-items:start"
    return html.document(
        f"What looks like {as_text(query.name)}",
        [
            _figure(query, as_text(str(query)), as_text(query.name)),
            html.heading(f"The {len(hits)} nearest" if hits else "Nothing was found"),
            *(html.paragraph(note, faint=True) for note in _notes(report)),
            f'<div style="{grid}">{"".join(figures)}</div>',
            html.heading("Where they lie"),
            _table(report, []).html(),
        ],
    )


def _figure(file: Path, path: str, caption: str) -> str:
    """A thumbnail, or words where the file is not there any more."""
    from lookalike.data.pictures import UnreadablePicture
    from lookalike.data.reading import read_picture

    try:
        image = read_picture(file, at_least=2 * SIDE)
    except UnreadablePicture as error:
        return html.paragraph(f"{caption}: {error.reason}", faint=True)
    image.thumbnail((SIDE, SIDE))
    content = io.BytesIO()
    image.save(content, "PNG")
    return html.picture(content.getvalue(), "png", path, caption)
