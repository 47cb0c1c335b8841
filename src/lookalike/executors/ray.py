"""Tasks on a Ray cluster."""

import logging
import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from typing import Any

from lookalike._util.signals import StopRequest
from lookalike.executors import RETRIES, Result, Say, Task, WorkerDied, describe_software, use_threads

POLL_EVERY = 0.5  # seconds between two looks at requests to stop
ANSWER_WITHIN = 20.0  # seconds for a cluster to accept a connection
INSTALL = "--executor ray needs Ray: pip install 'lookalike[ray]'"


class RayExecutor:
    """Runs tasks on a Ray cluster.

    Args:
        address: auto, host:port or ray://host:port; None: a new cluster on this machine.
        num_cpus: Processors of every task.
        num_gpus: GPUs of every task; may be a fraction.
        say: Receives messages.

    Raises:
        ImportError: If Ray is not installed.
        ValueError: If there is no cluster at the address, or no room for a task.
    """

    def __init__(self, address: str | None = None, num_cpus: float = 1, num_gpus: float = 0, say: Say = print) -> None:
        try:
            import ray
        except ImportError:
            raise ImportError(INSTALL) from None
        self._ray = ray
        errors = ray.exceptions
        self._deaths = (errors.WorkerCrashedError, errors.NodeDiedError, errors.OutOfMemoryError)
        self._num_cpus, self._num_gpus, self._say = num_cpus, num_gpus, say
        if not ray.is_initialized():
            _require_answer(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, include_dashboard=False)
            except (ConnectionError, TimeoutError) as error:
                raise ValueError(f"no Ray cluster at {address}: {str(error).splitlines()[0]}") from None
        if self.slots < 1:
            resources = ray.cluster_resources()
            there = f"{resources.get('CPU', 0):g} processors and {resources.get('GPU', 0):g} GPUs"
            raise ValueError(
                f"no task fits on the cluster: it has {there} (--num-cpus {num_cpus}, --num-gpus {num_gpus})"
            )

    @property
    def slots(self) -> int:
        """Tasks that run at the same time, by the resources that the cluster has now."""
        resources = self._ray.cluster_resources()
        rooms = []
        for name, needed in (("CPU", self._num_cpus), ("GPU", self._num_gpus)):
            if needed:
                rooms.append(int(resources.get(name, 0) / needed))
        return min(rooms, default=1)

    @property
    def threads(self) -> int | None:
        """Threads of every task: its processors."""
        return max(1, int(self._num_cpus))

    def run(
        self, function: Callable[[Task, Any], Result], tasks: Iterable[Task], shared: Any
    ) -> Iterator[tuple[Task, Result]]:
        """Call the function for every task; see ``Executor.run``."""
        ray = self._ray
        remote = ray.remote(num_cpus=self._num_cpus, num_gpus=self._num_gpus, max_retries=RETRIES)(_call)
        stored = ray.put(shared)
        source = iter(tasks)
        running: dict[Any, Task] = {}
        with StopRequest().listening() as stop, redirect_stdout(sys.stderr):  # Ray prints that a worker died
            try:
                while True:
                    while len(running) < max(1, self.slots):
                        task = next(source, None)
                        if task is None:
                            break
                        running[remote.remote(function, task, stored, self.threads)] = task
                    if not running:
                        return
                    ended, _ = ray.wait(list(running), timeout=POLL_EVERY)
                    stop.check()
                    for reference in ended:
                        task = running.pop(reference)
                        try:
                            result = ray.get(reference)
                        except ray.exceptions.RayTaskError as error:
                            raise error.cause from None  # without the traceback of the node in its message
                        except self._deaths as error:
                            raise WorkerDied(f"a task's worker died {RETRIES + 1} times: {error}") from None
                        yield task, result
            finally:
                for reference in running:
                    ray.cancel(reference)

    def check_nodes(self, inspect: Callable[[Task], Mapping[str, str]], argument: Task) -> None:
        """Check that every node finds the same as this process; see ``Executor.check_nodes``."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        remote: Any = self._ray.remote(num_cpus=0, max_retries=RETRIES)(_inspect_node)
        stored = self._ray.put(argument)
        findings = {}
        for node in self._ray.nodes():
            if node["Alive"]:
                strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                reference = remote.options(scheduling_strategy=strategy).remote(inspect, stored)
                findings[reference] = node["NodeManagerHostname"]
        here = _inspect_node(inspect, argument)
        errors = self._ray.exceptions
        for reference, host in findings.items():
            try:
                there = self._ray.get(reference)
            except (errors.NodeDiedError, errors.TaskUnschedulableError):
                continue  # it left the cluster
            except self._deaths as error:
                raise WorkerDied(f"a worker of node {host} died {RETRIES + 1} times: {error}") from None
            for name, value in here.items():
                if there[name] != value:
                    raise ValueError(f"node {host} differs in {name}: {there[name]} there, {value} here")


def _require_answer(address: str | None) -> None:
    """Refuse an address at which nobody listens: Ray would try again for minutes.

    Raises:
        ValueError: If there is no answer.
    """
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():  # auto, or a form that Ray completes or refuses
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), ANSWER_WITHIN).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"no Ray cluster at {address}: {reason}") from None


def _call(function: Callable[[Task, Any], Result], task: Task, shared: Any, threads: int) -> Result:
    use_threads(threads)
    return function(task, shared)


def _inspect_node(inspect: Callable[[Task], Mapping[str, str]], argument: Task) -> dict[str, str]:
    return {**describe_software(), **inspect(argument)}
