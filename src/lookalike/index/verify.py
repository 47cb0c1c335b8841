"""Checks everything that is stored in an index."""

from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from lookalike._util.checksums import Finding, check_listed_files
from lookalike._util.untrusted import parse_json
from lookalike.index import cache, database, decisions, labels_file, layout_file, marks_file
from lookalike.index.base import Index
from lookalike.index.cache import read_cache
from lookalike.index.decisions import Decisions
from lookalike.index.faiss_index import FaissIndex
from lookalike.index.findings_file import check_records
from lookalike.index.folder import ChangedPicture, check_unchanged
from lookalike.index.labels_file import LabelsFile
from lookalike.index.layout_file import read_layout
from lookalike.index.marks import Marks
from lookalike.index.milvus_index import MilvusIndex
from lookalike.index.storage import ABOUT, MODEL, MODEL_EXTRAS, SECOND, UPLOADS, About, fingerprint_of_weights
from lookalike.inference.converted import FOLDER, read_converted
from lookalike.models.store import read_model


def verify_index(path: Path, store: str | None = None) -> list[Finding]:
    """Check all files of an index; see ``lookalike.verify``."""
    findings = check_listed_files(path)
    if not any(finding.part == ABOUT for finding in findings) and (path / ABOUT).is_file():
        findings.append(Finding(ABOUT, "no checksum", "an earlier version wrote it"))
    try:
        about = About.read(path)
    except (OSError, ValueError) as error:
        return [*findings, Finding(ABOUT, "damaged", str(error))]
    findings += _check_version(path, about, store)
    findings += _check_marks(path) + _check_edits(path) + _check_decisions(path)
    if about.previous:
        try:
            previous = About.from_dict({**asdict(about), **about.previous, "previous": {}}, path / ABOUT)
        except ValueError as error:
            return [*findings, Finding(ABOUT, "damaged", str(error))]
        findings += _check_version(path, previous, store)
    return findings


def _check_version(path: Path, about: About, store: str | None) -> list[Finding]:
    """Check model, items and vectors of one version."""
    home = path / about.home
    prefix = f"{about.home}/" if about.home else ""
    model = f"{prefix}{MODEL}/"
    findings = check_listed_files(home, prefix) if about.home else []
    findings += check_listed_files(home / MODEL, model)
    checked = {finding.part for finding in findings}
    for name in MODEL_EXTRAS:
        if (home / MODEL / name).is_file() and f"{model}{name}" not in checked:
            findings.append(Finding(f"{model}{name}", "no checksum", "an earlier version wrote it"))
    findings.append(check_model(home / MODEL, model, about.fingerprint))
    if (home / MODEL / FOLDER).exists():
        findings.append(_check_converted(home / MODEL, about.fingerprint, f"{model}{FOLDER}"))
    part = f"{prefix}{database.FILE}" if about.backend == "faiss" else f"the Milvus collection {about.collection}"
    try:
        with FaissIndex(path, about) if about.backend == "faiss" else MilvusIndex(path, about, store) as idx:
            findings.append(idx.check()._replace(part=part))
            findings += _check_uploads(idx)
            for name in idx.second_models():
                findings += _check_second(idx, name)
    except (OSError, ValueError) as error:
        findings.append(Finding(part, "damaged", f"{error}. Restore a copy, or make a new index"))
    if (home / cache.FILE).exists():
        part = f"{prefix}{cache.FILE}"
        if read_cache(home / cache.FILE) is None:
            findings.append(Finding(part, "damaged", "the next lookalike index builds it again from the items"))
        else:
            findings.append(Finding(part, "ok"))
    if (home / layout_file.FILE).exists():
        part = f"{prefix}{layout_file.FILE}"
        if read_layout(home / layout_file.FILE) is None:
            findings.append(Finding(part, "damaged", "lookalike serve arranges the map again"))
        else:
            findings.append(Finding(part, "ok"))
    return findings


def _check_second(idx: Index, name: str) -> list[Finding]:
    """Check the files of a second model, and its vectors."""
    folder = idx.home / SECOND / name
    prefix = f"{folder.relative_to(idx.path)}/"
    findings = [*check_listed_files(folder, prefix), *check_listed_files(folder / MODEL, f"{prefix}{MODEL}/")]
    try:
        about = About.read(folder)
    except (OSError, ValueError) as error:
        if not any(finding.part == f"{prefix}{ABOUT}" for finding in findings):
            findings.append(Finding(f"{prefix}{ABOUT}", "damaged", str(error)))
        return findings
    findings.append(check_model(folder / MODEL, f"{prefix}{MODEL}/", about.fingerprint))
    if (folder / MODEL / FOLDER).exists():
        findings.append(_check_converted(folder / MODEL, about.fingerprint, f"{prefix}{MODEL}/{FOLDER}"))
    try:
        with idx.open_model(name) as second:
            finding = second.check()
    except (OSError, ValueError) as error:
        finding = Finding(name, "damaged", str(error))
    findings.append(finding._replace(part=f"{prefix.rstrip('/')}: {finding.part}"))
    return findings


def check_model(folder: Path, prefix: str = "", fingerprint: str | None = None) -> Finding:
    """Check the model in a folder, and that it has the fingerprint of an index."""
    part = f"{prefix}model.json and {prefix}model.safetensors"
    try:
        stored = read_model(folder)
        if fingerprint is not None and fingerprint_of_weights(parse_json(stored.text), stored.weights) != fingerprint:
            raise ValueError("it is not the model of this index. Copy it from the run again")
    except (OSError, ValueError) as error:
        return Finding(part, "damaged", str(error))
    if not stored.has_checksum and fingerprint is None:
        return Finding(part, "no checksum", "an earlier version wrote it")
    return Finding(part, "ok")


def _check_converted(folder: Path, fingerprint: str, part: str) -> Finding:
    try:
        read_converted(folder, fingerprint)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        return Finding(part, "damaged", f"{error}. Delete the folder; lookalike index makes it again")
    return Finding(part, "ok")


def _check_marks(path: Path) -> list[Finding]:
    try:
        with Marks(path) as marks:
            finding = marks.check()
    except (OSError, ValueError) as error:
        finding = Finding(marks_file.FILE, "damaged", f"{error}. Restore a copy")
    return [] if finding is None else [finding]


def _check_edits(path: Path) -> list[Finding]:
    if not (path / labels_file.FILE).exists():
        return []
    try:
        with closing(LabelsFile(path / labels_file.FILE)) as edits, edits.reading():
            return [edits.check()]
    except (OSError, ValueError) as error:
        return [Finding(labels_file.FILE, "damaged", f"{error}. Restore a copy; labels are in the index")]


def _check_decisions(path: Path) -> list[Finding]:
    try:
        with Decisions(path) as stored:
            finding = stored.check()
    except (OSError, ValueError) as error:
        return [Finding(decisions.FILE, "damaged", f"{error}. Restore a copy, or decide again")]
    return [each for each in (finding, check_records(path)) if each is not None]


def _check_uploads(idx: Index) -> list[Finding]:
    """Compare uploaded pictures with the stamps of their items."""
    ids = [item.id for item in idx.items() if not item.path]
    damaged = []
    for item_id, stamp in idx.stamps(ids).items():
        try:
            with (idx.path / UPLOADS / f"{item_id}.jpg").open("rb") as file:
                check_unchanged(file, stamp)
        except (OSError, ChangedPicture):
            damaged.append(item_id)
    if damaged:
        repair = "upload them again, or delete these items"
        return [Finding(UPLOADS, "damaged", f"{len(damaged):,} pictures (first: {damaged[0]}.jpg): {repair}")]
    return [Finding(UPLOADS, "ok", f"{len(ids):,} pictures")] if ids else []
