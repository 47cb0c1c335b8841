"""Options of commands that run many trainings: in this process, in several, or on a Ray cluster."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lookalike._util.settings import setting
from lookalike.cli.config_file import UsageError
from lookalike.cli.output import print_status

if TYPE_CHECKING:
    from lookalike.executors import Executor


@dataclass(kw_only=True)
class ExecutorOptions:
    """Options ``--executor``, ``--workers``, ``--ray-address``, ``--num-cpus`` and ``--num-gpus``."""

    executor: Literal["local", "ray"] = setting("local", "where trainings run: local (this machine) or ray (a cluster)")
    workers: int = setting(1, "processes on this machine that share the work", least=1)
    ray_address: str | None = setting(
        None, "Ray cluster: auto, host:port or ray://host:port; null: a new one on this machine"
    )
    num_cpus: float = setting(1.0, "processors of every training on Ray", above=0)
    num_gpus: float = setting(0.0, "GPUs of every training on Ray; 0.5: two share one", least=0)

    def create_executor(self) -> "Executor":
        """Create the executor that the options name."""
        from lookalike.executors import create_executor

        return create_executor(
            self.executor,
            workers=self.workers,
            ray_address=self.ray_address,
            num_cpus=self.num_cpus,
            num_gpus=self.num_gpus,
            say=print_status,
        )


@dataclass(kw_only=True)
class ShardOptions:
    """Options of commands that embed a large collection in shards."""

    executor: Literal["local", "ray"] | None = setting(
        None,
        "embed in shards, in processes of this machine (local) or on a cluster (ray), and continue after a kill; "
        "null: in this process; a URL is always embedded in shards",
    )
    processes: int | None = setting(None, "processes of --executor local; null: by the number of cores", least=1)
    ray_address: str | None = setting(
        None, "Ray cluster: auto, host:port or ray://host:port; null: a new one on this machine"
    )
    num_cpus: float = setting(1.0, "processors of every shard on Ray", above=0)
    num_gpus: float = setting(0.0, "GPUs of every shard on Ray; 0.5: two share one", least=0)
    shard_size: int | None = setting(None, "pictures of a shard; null: by their number, at most 1,024", least=1)

    def in_shards(self, source: str) -> bool:
        """Return whether a source is embedded in shards; refuse options that do nothing.

        Raises:
            UsageError: If an option needs ``--executor``.
        """
        from lookalike.data.object_storage import is_url

        if self.executor is not None or is_url(source):
            return True
        for option, value in (("--processes", self.processes), ("--shard-size", self.shard_size)):
            if value is not None:
                raise UsageError(f"{option} needs --executor")
        if self.ray_address is not None:
            raise UsageError("--ray-address needs --executor ray")
        return False

    def create_shard_executor(self) -> "Executor":
        """Create the executor that the options name."""
        from lookalike.data.loading import default_workers
        from lookalike.executors import create_executor

        name = self.executor or "local"
        if name == "ray" and self.processes is not None:
            raise UsageError("--processes is for --executor local; Ray runs as many shards as --num-cpus allows")
        processes = self.processes or 1
        if self.processes is None and self.executor == "local":
            processes = default_workers() + 1
        return create_executor(
            name,
            workers=processes,
            ray_address=self.ray_address,
            num_cpus=self.num_cpus,
            num_gpus=self.num_gpus,
            say=print_status,
        )

    def shard_device(self, device: str | None) -> str | None:
        """Return where shards are computed: on Ray a GPU only if every shard gets one."""
        if device is None and self.executor == "ray":
            return "cuda" if self.num_gpus else "cpu"
        return device


def require_listable(source: str) -> None:
    """Refuse a source that is neither a folder nor a URL: shards consist of files."""
    from lookalike.data.object_storage import is_url

    if not is_url(source) and not Path(source).expanduser().is_dir():
        raise UsageError(f"--executor takes a folder of pictures or a URL, got {source}")


def require_no_cache(cache: str | None) -> None:
    """Refuse a cache of features: shards are computed directly."""
    if cache not in (None, "none"):
        raise UsageError("--cache does nothing with --executor: the vectors are what is stored")
