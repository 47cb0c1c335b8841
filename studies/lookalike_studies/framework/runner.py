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
from lookalike_studies.framework.outputs import (
    MINIATURE,
    TRACES,
    check_folder,
    reduced_in_words,
    write_outputs,
)
from lookalike_studies.framework.study import Scale, Study, StudyResult


class FinishedStudy(NamedTuple):
    """A study that has run.

    Attributes:
        result: What it found.
        run: How it was run: command, scale, seconds and the like.
        files: The files that were written.
    """

    result: StudyResult
    run: dict[str, Any]
    files: list[Path]


def run_study(
    study: Study,
    settings: Any,
    scale: Scale,
    out: Path,
    data: str | None = None,
    command: str = "",
    executor: Executor | None = None,
) -> FinishedStudy:
    """Run a study, or continue one that was stopped, and write its files.

    Args:
        study: The study.
        settings: Its settings, from ``study.load_settings``.
        scale: The scale of the settings.
        out: Folder for the files.
        data: Value of ``--data``; None without it.
        command: The command line, for the page.
        executor: Where independent parts run; None: in this process.

    Returns:
        Results and files.

    Raises:
        ValueError: If the folder holds something else.
        FolderInUse: If another process runs a study in it.
        Stopped: If the user stops it; the same call continues after the last finished part.
    """
    check_output_folder(out, "study", TRACES)
    check_folder(out, study, scale)
    with FolderLock(out):
        return _run(study, settings, scale, out, data, command, executor)


def _run(
    study: Study,
    settings: Any,
    scale: Scale,
    out: Path,
    data: str | None,
    command: str,
    executor: Executor | None,
) -> FinishedStudy:
    opening = reduced_in_words(study, settings)
    if scale == "miniature":
        opening.insert(0, MINIATURE)
    started = time.monotonic()
    with StopRequest().listening() as stop:
        display = Display(stop, opening=opening)
        context = create_context(study, settings, out, display, data, executor)
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
    files = write_outputs(study, settings, result, out, run)
    return FinishedStudy(result, run, files)
