"""Runs one study and writes its files."""

import platform
import time
from pathlib import Path
from typing import Any, NamedTuple

from lookalike._util.files import check_output_folder
from lookalike._util.folder_lock import FolderLock
from lookalike._util.progress import Display
from lookalike._util.signals import Stopped, StopRequest
from lookalike.executors import Executor
from lookalike_studies.framework.context import create_context
from lookalike_studies.framework.outputs import MINIATURE, TRACES, check_folder, reduced_in_words, write_outputs
from lookalike_studies.framework.study import Scale, Study, StudyResult


class FinishedStudy(NamedTuple):
    """A study that has run."""

    result: StudyResult  # what it found
    run: dict[str, Any]  # how it was run, such as command, scale and seconds
    files: list[Path]  # the files that were written


def run_study(
    study: Study,
    settings: Any,
    scale: Scale,
    out: Path,
    data: str | None = None,
    command: str = "",
    executor: Executor | None = None,
) -> FinishedStudy:
    """Run a study, or continue one that was stopped, and write its files to ``out``.

    ``settings`` are from ``study.load_settings`` at ``scale``; ``data`` is the value of --data; ``command`` is for the
    page. Raises ValueError if the folder holds something else, FolderInUse if another process works in it, and Stopped
    if the user stops it; the same call continues after the last finished part.
    """
    check_output_folder(out, "study", TRACES)
    check_folder(out, study, scale)
    opening = reduced_in_words(study, settings)
    if scale == "miniature":
        opening.insert(0, MINIATURE)
    started = time.monotonic()
    with FolderLock(out), StopRequest().listening() as stop:
        display = Display(stop, opening=opening)
        context = create_context(study.name, settings, out, display, data, executor)
        try:
            result = study.run(settings, context)
        except Stopped:
            display.say("stopped; the same command continues after the last finished part")
            raise
        display.open()
        run = {
            "command": command,
            "scale": scale,
            "miniature": scale == "miniature",
            "data": data or "none",
            "seconds": round(time.monotonic() - started + context.earlier_seconds, 1),
            "machine": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        }
        return FinishedStudy(result, run, write_outputs(study, settings, result, out, run))
