"""``lookalike calibrate IDX``: learn from labels how likely two pictures at a distance are the same."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lookalike._util.settings import setting
from lookalike.cli.arguments import JSON, REQUIRED, UsageError, parse
from lookalike.cli.output import print_result, require_new_file
from lookalike.inference.engine_name import ENGINE_HELP, EngineName

if TYPE_CHECKING:
    from lookalike.retrieval.calibration import Calibration

DESCRIPTION = """Fit P(same | distance) on the labels of an index, for the percentages and the test of lookalike search
and serve. Or give a run and labelled pictures of classes that it was not trained on: indexes that are made
with the run afterwards use this calibration. lookalike train does that with the classes that it holds out."""
EXAMPLE = "lookalike calibrate mine.idx"


@dataclass
class CalibrateSettings:
    """Options of ``lookalike calibrate``."""

    target: Path = setting(REQUIRED, "folder of an index, or of a run")
    data: str | None = setting(None, "labelled pictures, for a run: a folder of class folders, a CSV, ...")
    plot: Path | None = setting(None, "also draw predicted against observed shares, as PNG or SVG")
    overwrite: bool = setting(False, "replace --plot if it exists")
    workers: int | None = setting(None, "processes that read pictures; null: by the number of cores", least=0)
    device: str | None = setting(None, "cpu, cuda, ...; null: a GPU if there is one")
    engine: EngineName = setting("auto", ENGINE_HELP)
    store: str | None = setting(
        None, "address of the Milvus server that may receive LOOKALIKE_MILVUS_TOKEN; null: LOOKALIKE_MILVUS_URI"
    )


def run(argv: list[str]) -> int:
    """Run ``lookalike calibrate`` with the words after its name, and return the exit code."""
    settings, flags = parse(
        CalibrateSettings, argv, "calibrate", DESCRIPTION, EXAMPLE, positional=["target", "data"], flags=JSON
    )
    if settings.plot is not None:
        require_new_file(settings.plot, "--plot", settings.overwrite)
    is_run = (settings.target / "model.json").is_file()
    if is_run and settings.data is None:
        raise UsageError("missing DATA (labelled pictures): a run has no pictures of its own")
    if not is_run and settings.data is not None:
        raise UsageError(f"an index is calibrated on its own labels: leave out {settings.data}")
    if is_run:
        calibration = _calibrate_run(settings)
    else:
        from lookalike import index
        from lookalike.index.calibrating import calibrate

        with index.open(settings.target, settings.store) as idx:
            calibration = calibrate(idx)
    if settings.plot is not None:
        from lookalike.report.run_plots import write_reliability

        write_reliability(settings.plot, calibration.reliability, calibration.error)
    if flags:
        print(json.dumps(asdict(calibration)))
        return 0
    lines = [
        calibration.describe(),
        f"calibration error {100 * calibration.error:.1f} %, each half of the classes predicted from the other half",
    ]
    if settings.plot is not None:
        lines.append(f"wrote {settings.plot}")
    print_result("\n".join(lines))
    return 0


def _calibrate_run(settings: CalibrateSettings) -> "Calibration":
    from lookalike import data
    from lookalike.cli.loading import embed_pictures, load_model, view_of_run
    from lookalike.retrieval.calibration import FILE, WHOLE_FILE, find_neighbourhoods, fit

    pictures = data.load(str(settings.data), progress=True)
    seen: list[Literal["crop", "whole"]] = ["crop"]
    if view_of_run(settings.target) == "whole":
        seen.append("whole")
    for view in seen:
        model = load_model(settings.target, "auto", None, settings.device, settings.engine, view)
        if view == "whole" and not model.spec.sees_whole:
            break
        vectors = embed_pictures(model, pictures, settings.workers)
        neighbourhoods = find_neighbourhoods(vectors, pictures.labels, distance=model.distance)
        calibration = fit(neighbourhoods, pictures.name, unseen=True)
        calibration.write(settings.target, WHOLE_FILE if view == "whole" else FILE)
    return calibration
