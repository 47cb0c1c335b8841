"""``lookalike marks IDX``: what people said about results, what to label next, and labels for training."""

import getpass
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookalike._util.settings import setting
from lookalike.cli.arguments import JSON, REQUIRED, UsageError, parse
from lookalike.cli.output import print_result, require_new_file
from lookalike.data.files import counted

if TYPE_CHECKING:
    from lookalike.index.base import Index
    from lookalike.index.marks import Mark, MarkedPicture, Marks
    from lookalike.index.marks_review import Review

DESCRIPTION = """List what people marked on the page of lookalike serve: results that are right or wrong. Marks that
contradict each other, and marks on pictures that are gone, are not used for training; they are listed here.
--csv writes the whole history, --labels all labels as a table for lookalike train. --next chooses pictures whose marks
would change the ranking most."""
EXAMPLE = "lookalike marks mine.idx --csv marks.csv"
SIGNS = {"same": "=", "different": "≠", "skip": "?"}


@dataclass
class MarksSettings:
    """Options of ``lookalike marks``."""

    index: Path = setting(REQUIRED, "folder of the index")
    csv: Path | None = setting(None, "write all marks, undone ones included, with the state of each")
    labels: Path | None = setting(None, "write all labels as a CSV that lookalike train reads")
    undo: int | None = setting(
        None, "undo the mark with this number, and those that were set together with it", least=1
    )
    next: int | None = setting(None, "choose this many pictures to compare next", least=1, up_to=100)
    limit: int = setting(20, "marks to list", least=1)
    overwrite: bool = setting(False, "replace --csv and --labels if they exist")
    store: str | None = setting(
        None, "address of the Milvus server that may receive LOOKALIKE_MILVUS_TOKEN; null: LOOKALIKE_MILVUS_URI"
    )


def run(argv: list[str]) -> int:
    """Run ``lookalike marks`` with the words after its name, and return the exit code."""
    settings, flags = parse(MarksSettings, argv, "marks", DESCRIPTION, EXAMPLE, positional=["index"], flags=JSON)
    for file, option in ((settings.csv, "--csv"), (settings.labels, "--labels")):
        if file is not None:
            require_new_file(file, option, settings.overwrite)
    if settings.undo is not None and settings.next is not None:
        raise UsageError("--undo and --next are for two calls")
    from lookalike import index
    from lookalike.index.marks import Marks

    with index.open(settings.index, settings.store) as idx, Marks(idx.path) as marks:
        report, text = _act(settings, idx, marks)
    if "--json" in flags:
        print(json.dumps(report))
    else:
        print_result(text)
    return 0


def _act(settings: MarksSettings, idx: "Index", marks: "Marks") -> tuple[dict[str, Any], str]:
    """Do what is asked for; returns the result for scripts and for people."""
    if settings.undo is not None:
        return _undo(marks, settings.undo)
    if settings.next is not None:
        return _choose(idx, marks, settings.next)
    report: dict[str, Any] = {}
    lines = []
    if settings.csv is not None:
        report.update(csv=str(settings.csv), marks=marks.write_csv(settings.csv, idx))
        lines.append(f"wrote {settings.csv}: {report['marks']:,} marks, undone ones included")
    if settings.labels is not None:
        from lookalike.index.labels import Labels

        with Labels(idx) as labels:
            report.update(labels=str(settings.labels), pictures=labels.write_csv(settings.labels))
        lines.append(f"wrote {settings.labels}: {report['pictures']:,} labelled pictures")
    if lines:
        return report, "\n".join(lines)
    return _list(idx, marks, settings.limit)


def _undo(marks: "Marks", number: int) -> tuple[dict[str, Any], str]:
    try:
        undone = marks.undo(number, getpass.getuser())
    except KeyError as error:
        raise UsageError(str(error.args[0])) from None
    text = f"{counted(undone, 'mark')} undone" if undone else f"mark {number} was undone before"
    return {"undone": undone}, text


def _choose(idx: "Index", marks: "Marks", count: int) -> tuple[dict[str, Any], str]:
    from lookalike.index.active_choice import choose_next
    from lookalike.index.calibrating import load_calibration

    queue = choose_next(idx, marks, count, load_calibration(idx))
    questions = []
    lines = [f"{len(queue.questions)} pictures to compare, {queue.note}"]
    for question in queue.questions:
        item, other = question.item, question.other
        questions.append(
            {
                "id": item.id,
                "path": item.path,
                "other_id": other.id,
                "other_path": other.path,
                "distance": question.distance,
                "probability": question.probability,
                "uncertainty": question.uncertainty,
            }
        )
        probability = ""
        if question.probability is not None:
            probability = f"{100 * question.probability:.0f} % the same"
        lines.append(f"{item.path or item.id}  {other.path or other.id}  {probability}".rstrip())
    return {"questions": questions, "note": queue.note}, "\n".join(lines)


def _list(idx: "Index", marks: "Marks", limit: int) -> tuple[dict[str, Any], str]:
    review = marks.review(idx)
    history = marks.history(limit)
    contradictions = []
    for found in review.contradictions:
        chain = [pair.mark for pair in found.chain]
        contradictions.append({"different": found.different.mark, "chain": chain, "marks": found.marks})
    report = {
        "count": marks.count(),
        "pairs": len(review.pairs),
        "expired": review.expired,
        "contradictions": contradictions,
        "marks": [_report(mark, review) for mark in history],
    }
    lines = [f"{counted(marks.count(), 'mark')}; {counted(len(review.pairs), 'pair')} of pictures to learn from"]
    if review.expired:
        lines.append(f"{counted(review.expired, 'mark')} on pictures that are gone")
    for found in review.contradictions:
        numbers = ", ".join(str(pair.mark) for pair in found.chain)
        lines.append(f"mark {found.different.mark} contradicts {numbers}: undo the wrong one with --undo N")
    lines += [_describe(mark, review) for mark in history]
    return report, "\n".join(lines)


def _report(mark: "Mark", review: "Review") -> dict[str, Any]:
    return {
        "mark": mark.number,
        "together": mark.batch,
        "time": mark.time,
        "by": mark.by,
        "verdict": mark.verdict,
        "state": review.states.get(mark.number, "in force"),
        "query": mark.query._asdict(),
        "result": mark.result._asdict(),
        "model": mark.model,
    }


def _describe(mark: "Mark", review: "Review") -> str:
    sign = SIGNS[mark.verdict]
    who = f" by {mark.by}" if mark.by else ""
    state = review.states.get(mark.number, "in force")
    return f"{mark.number:>5}  {_name(mark.query)} {sign} {_name(mark.result)}  {state}{who}"


def _name(picture: "MarkedPicture") -> str:
    return picture.path or picture.id or picture.content
