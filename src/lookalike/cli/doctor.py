"""``lookalike doctor DATA|IDX``: find faults in labelled pictures, and apply the decisions about them."""

import csv
import json
import shlex
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lookalike._util.settings import setting
from lookalike.cli.arguments import JSON, REQUIRED, UsageError, parse
from lookalike.cli.loading import WEIGHTS_HELP, embed_pictures, load_model
from lookalike.cli.output import print_result, print_status
from lookalike.inference.engine_name import ENGINE_HELP, EngineName

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lookalike.data.pictures import Pictures
    from lookalike.doctor import Corrected, Examination

DESCRIPTION = """Find duplicates, doubtful labels, outliers, broken and tiny pictures, small classes and classes that
are confused. Writes findings.csv, a page to decide about them (doctor.html), and corrected.csv, a table for lookalike
train with the suggested fixes. --fixes FILE applies an edited findings.csv instead. The pictures are not changed.
The findings of an index are shown on the page of lookalike serve, unless there is --out."""
EXAMPLE = "lookalike doctor my_pictures/ --out doctor"
DEFAULT_MODEL = "efficientnet_lite0"
DEFAULT_OUT = Path("doctor")
VECTORS = "vectors.npz"  # so that decisions are measured without embedding again


@dataclass
class DoctorSettings:
    """Options of ``lookalike doctor``."""

    data: str = setting(REQUIRED, "a folder of class folders, a CSV, a data set as name:folder, or an index")
    out: Path | None = setting(
        None, "folder for findings.csv, doctor.html and corrected.csv; null: doctor, or nothing for an index"
    )
    model: Path = setting(Path(DEFAULT_MODEL), "folder of a run, or the name of a backbone; an index has its own")
    confidence: float = setting(0.9, "probability that a label is wrong from which it is changed", above=0.5, up_to=1)
    fixes: Path | None = setting(None, "an edited findings.csv: write corrected.csv from its decisions")
    workers: int | None = setting(None, "processes that read pictures; null: by the number of cores", least=0)
    weights: str = setting("auto", WEIGHTS_HELP)
    device: str | None = setting(None, "cpu, cuda, ...; null: a GPU if there is one")
    engine: EngineName = setting("auto", ENGINE_HELP)
    store: str | None = setting(
        None, "address of the Milvus server that may receive LOOKALIKE_MILVUS_TOKEN; null: LOOKALIKE_MILVUS_URI"
    )


def run(argv: list[str]) -> int:
    """Run ``lookalike doctor`` with the words after its name, and return the exit code."""
    settings, flags = parse(DoctorSettings, argv, "doctor", DESCRIPTION, EXAMPLE, positional=["data"], flags=JSON)
    if (Path(settings.data) / "index.json").exists():
        report = _examine_index(settings)
    elif settings.fixes is not None:
        report = _apply(settings, settings.out or DEFAULT_OUT)
    else:
        report = _examine_data(settings, settings.out or DEFAULT_OUT)
    if "--json" in flags:
        print(json.dumps(report))
    else:
        print_result(_summarise(report))
    return 0


def _examine_data(settings: DoctorSettings, out: Path) -> dict[str, Any]:
    import numpy as np

    from lookalike import data
    from lookalike._util.files import replacing, require_writable

    require_writable(out)
    pictures = data.load(settings.data, progress=True)
    model = load_model(settings.model, settings.weights, None, settings.device, settings.engine)
    vectors = embed_pictures(model, pictures, settings.workers)
    examination = _examine(pictures, vectors, lambda _: None)
    report = _write(settings, out, examination, model.distance)
    with replacing(out / VECTORS) as unfinished, unfinished.open("wb") as file:
        names = np.array([name.encode(errors="surrogateescape") for name in pictures.names])
        np.savez(file, vectors=vectors, names=names, distance=np.array(model.distance))
    return report


def _examine_index(settings: DoctorSettings) -> dict[str, Any]:
    """Examine an index. Without --out the findings are stored in it, for the page of lookalike serve."""
    from lookalike import index
    from lookalike._util.files import require_writable
    from lookalike.doctor.of_index import load_index, records_of
    from lookalike.index.findings_file import write_records
    from lookalike.index.job_status import DOCTOR, watched

    folder = Path(settings.data)
    if settings.fixes is not None:
        return _apply(settings, settings.out or DEFAULT_OUT)
    require_writable(settings.out or folder)
    with ExitStack() as stack:
        status = stack.enter_context(watched(folder, DOCTOR)) if settings.out is None else None
        idx = stack.enter_context(index.open(folder, settings.store))
        indexed = load_index(idx)
        distance = idx.distance
        if status is not None:
            status.stage("examining", 2 * len(indexed.items))
        watch = (lambda _: None) if status is None else status.advance
        examination = _examine(indexed.pictures, indexed.vectors, watch)
        examination.findings[:0] = indexed.changed
        if status is None:
            assert settings.out is not None
            return _write(settings, settings.out, examination, distance)
        write_records(folder, records_of(examination, indexed.items, settings.confidence))
        report = _report(examination, _suggested(settings, examination), distance)
        report["index"] = str(folder)
        status.finish("done", "examined", {name: value for name, value in report.items() if name != "index"})
    return report


def _apply(settings: DoctorSettings, out: Path) -> dict[str, Any]:
    """Write the table with the decisions of --fixes, and measure their effect if the vectors are known."""
    from lookalike._util.files import require_writable
    from lookalike.doctor import apply_fixes, read_fixes, write_corrected
    from lookalike.doctor.fixes import measure_effect

    assert settings.fixes is not None
    if not settings.fixes.exists():
        raise UsageError(f"there is no file {settings.fixes}")
    require_writable(out)
    fixes = read_fixes(settings.fixes)
    pictures, vectors, distance = _known_vectors(settings, out)
    corrected = apply_fixes(pictures, fixes)
    out.mkdir(parents=True, exist_ok=True)
    write_corrected(pictures, corrected, out / "corrected.csv")
    report: dict[str, Any] = {
        "corrected": str(out / "corrected.csv"),
        "dropped": len(pictures) - len(corrected.positions),
        "relabelled": sum(fix.action == "relabel" for fix in fixes),
        "MAP@R": None,
    }
    if vectors is not None:
        labels = [pictures.classes[label] for label in pictures.labels]
        report["MAP@R"] = measure_effect(vectors, labels, corrected.positions, corrected.labels, distance)
    return report


def _known_vectors(settings: DoctorSettings, out: Path) -> "tuple[Pictures, NDArray[np.floating] | None, str]":
    """The pictures; their vectors, if they come from an index or the examination left them; and the distance."""
    import numpy as np

    from lookalike import data, index
    from lookalike.doctor.of_index import load_index

    folder = Path(settings.data)
    if (folder / "index.json").exists():
        with index.open(folder, settings.store) as idx:
            indexed = load_index(idx)
            return indexed.pictures, indexed.vectors, idx.distance
    pictures = data.load(settings.data, progress=True)
    names = [name.encode(errors="surrogateescape") for name in pictures.names]
    try:
        with np.load(out / VECTORS) as stored:
            if stored["names"].tolist() == names and len(stored["vectors"]) == len(names):
                return pictures, stored["vectors"], str(stored["distance"])
    except (OSError, ValueError, KeyError):
        pass
    return pictures, None, "cosine"


def _examine(pictures: "Pictures", vectors: "NDArray[np.floating]", watch: Callable[[int], Any]) -> "Examination":
    from lookalike._util.progress import Display
    from lookalike._util.signals import StopRequest
    from lookalike.doctor import examine

    with StopRequest().listening() as stop, Display(stop).bar(2 * len(pictures), "examining") as tick:

        def advance(count: int) -> None:
            tick(count)
            watch(count)

        return examine(pictures, vectors, tick=advance)


def _suggested(settings: DoctorSettings, examination: "Examination") -> "Corrected":
    from lookalike.doctor import apply_fixes, suggested_fixes

    return apply_fixes(examination.pictures, suggested_fixes(examination, settings.confidence))


def _write(settings: DoctorSettings, out: Path, examination: "Examination", distance: str) -> dict[str, Any]:
    """Write findings, page and corrected table."""
    from lookalike._util.files import write_text
    from lookalike.doctor import write_corrected, write_findings
    from lookalike.report.doctor import make_page

    out.mkdir(parents=True, exist_ok=True)
    write_findings(examination, out / "findings.csv", settings.confidence)
    corrected = _suggested(settings, examination)
    write_corrected(examination.pictures, corrected, out / "corrected.csv")
    with (out / "findings.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    command = shlex.join(["lookalike", "doctor", settings.data, "--out", str(out), "--fixes", "findings.csv"])
    write_text(out / "doctor.html", make_page(examination, rows, command, settings.confidence))
    print_status(f"wrote {out / 'doctor.html'}, findings.csv and corrected.csv")
    return {**_report(examination, corrected, distance), "out": str(out)}


def _report(examination: "Examination", corrected: "Corrected", distance: str) -> dict[str, Any]:
    from lookalike.doctor.fixes import measure_effect

    pictures = examination.pictures
    labels = [pictures.classes[label] for label in pictures.labels]
    return {
        "pictures": len(pictures),
        "findings": examination.counts(),
        "suggested": len(pictures) - len(corrected.positions),
        "MAP@R": measure_effect(examination.vectors, labels, corrected.positions, corrected.labels, distance),
    }


def _summarise(report: dict[str, Any]) -> str:
    lines = []
    if "corrected" in report:
        lines.append(
            f"wrote {report['corrected']}: {report['dropped']:,} pictures dropped, {report['relabelled']:,} relabelled"
        )
    else:
        lines.append(f"{report['pictures']:,} pictures")
        for kind, count in report["findings"].items():
            lines.append(f"{count:7,}  {kind}")
        if not report["findings"]:
            lines.append("nothing was found")
    effect = report["MAP@R"]
    if effect is not None:
        which = "these" if "corrected" in report else "the suggested"
        lines.append(f"MAP@R {100 * effect['before']:.2f}, with {which} fixes {100 * effect['after']:.2f}")
    if "index" in report:
        lines.append(f"next: lookalike serve {shlex.quote(report['index'])}, and decide on the tab Doctor")
    if "out" in report:
        out = shlex.quote(report["out"])
        lines.append(f"next: open {out}/doctor.html, or lookalike train {out}/corrected.csv --out RUN")
    return "\n".join(lines)
