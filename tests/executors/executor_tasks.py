"""Tasks without imports that take long, for processes of their own; and how to find these processes."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def die_twice(task: int, folder: Path) -> int:
    """Kills its process at the first two tries."""
    for number in range(2):
        mark = folder / f"{task}-{number}"
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return task * task


def always_die(_task: int, _folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def double(task: int, factor: int) -> int:
    return task * factor


def die_once_and_square(number: int, folder: Path, _tick: Callable[[int], Any]) -> dict[str, int]:
    """A part of a study; notes every call, and the first one for 1 kills its process."""
    calls = folder / f"{number}.calls"
    with calls.open("a") as file:
        file.write("x")
    if number == 1 and calls.read_text() == "x":
        os.kill(os.getpid(), signal.SIGKILL)
    return {"square": number**2}


def refuse(_task: int, _shared: None) -> None:
    raise ValueError("this task is refused")


def wait_for(condition: Callable[[], Any], seconds: float = 300) -> Any:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError("it never came")


def pool_processes(coordinator: int) -> list[int]:
    """The processes of its pool, which are spawned."""
    children = Path(f"/proc/{coordinator}/task/{coordinator}/children").read_text().split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def is_alive(process: int) -> bool:
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
