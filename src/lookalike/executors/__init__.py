"""Executors: run independent tasks on this machine or on a Ray cluster.

An executor calls ``function(task, shared)`` for every task and yields the results as they come. Tasks are drawn from
an iterator only when there is room for one more, so a search can propose its next trial from what is finished. Tasks
must be resumable: the one of a process or node that dies is run again.

Results come back to the process that called ``run``. It alone writes them, so nodes need no common file system unless
the tasks themselves do.
"""

import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from lookalike._util.signals import RunFailed

RETRIES = 3  # of a task whose process or node died
Task = TypeVar("Task")
Result = TypeVar("Result")
Say = Callable[[str], None]


class WorkerDied(RunFailed):
    """The process or node of a task died more often than it is tried."""


class Executor(Protocol):
    """Runs tasks; see the module."""

    @property
    def slots(self) -> int:
        """Tasks that run at the same time."""

    @property
    def threads(self) -> int | None:
        """Threads of every task; None: this process's own."""

    def run(
        self, function: Callable[[Task, Any], Result], tasks: Iterable[Task], shared: Any
    ) -> Iterator[tuple[Task, Result]]:
        """Call the function for every task, and yield each task with its result as it ends.

        Args:
            function: A module's function; it runs in another process or on another machine.
            tasks: Drawn one by one, when there is room.
            shared: Passed to every call; sent to every process or node once.

        Raises:
            Stopped: A stop was requested; running tasks were told to end.
            WorkerDied: A task's worker died again and again.
        """

    def check_nodes(self, inspect: Callable[[Task], Mapping[str, str]], argument: Task) -> None:
        """Check that every node finds the same as this process, before any task.

        Args:
            inspect: A module's function that says what a node finds: by name, a short text.
            argument: Passed to it.

        Raises:
            ValueError: If a node differs from this one in what ``inspect`` or ``describe_software`` says.
        """


def use_threads(threads: int) -> None:
    """Set the threads of libraries that are imported already, and of those that the task imports.

    Torch is not imported for it: that takes seconds, and the task may not need it.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def describe_software() -> dict[str, str]:
    """Return the versions that must be the same on every node."""
    import torch

    import lookalike

    return {
        "the version of Python": ".".join(platform.python_version_tuple()[:2]),
        "the version of lookalike": lookalike.__version__,
        "the version of torch": torch.__version__,
    }


def create_executor(
    name: str = "local",
    *,
    workers: int = 1,
    ray_address: str | None = None,
    num_cpus: float = 1,
    num_gpus: float = 0,
    say: Say = print,
) -> Executor:
    """Create an executor.

    Args:
        name: local or ray.
        workers: Processes of the local one; 1: this process.
        ray_address: Cluster to use: auto, host:port or ray://host:port; None: a new one on this machine.
        num_cpus: Processors of every task on Ray.
        num_gpus: GPUs of every task on Ray; 0.5: two tasks share one.
        say: Receives messages.

    Raises:
        ValueError: If options do not fit together.
        ImportError: If Ray is not installed.
    """
    if name == "local":
        if ray_address is not None:
            raise ValueError("--ray-address needs --executor ray")
        from lookalike.executors.local import LocalExecutor

        return LocalExecutor(workers, say)
    if name != "ray":
        raise ValueError(f"executor must be local or ray, got {name!r}")
    if workers != 1:
        raise ValueError("--workers is for --executor local; Ray runs as many tasks as --num-cpus and --num-gpus allow")
    from lookalike.executors.ray import RayExecutor

    return RayExecutor(ray_address, num_cpus, num_gpus, say)
