"""The folder of a run and the state it resumes from; every file in it is complete at any moment.

settings.yaml      resolved settings
data.json          what it was trained and validated on
model.json, model.safetensors   best weights so far; ``lookalike.load`` reads them
metrics.csv, events*            losses and metrics over time, for tables and TensorBoard
state/last.pt      state to resume from; previous.pt, the one before; checksums.json, of both
figures.json       summary
checksums.json     of settings.yaml, data.json, metrics.csv and figures.json
run.lock           held while a process trains
"""

import csv
import json
import shutil
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml

from lookalike._util.checksums import hash_content, read_checksums, write_checked, write_checksums
from lookalike._util.files import LOCK, replacing, require_writable
from lookalike._util.folder_lock import FolderLock
from lookalike._util.suggestions import did_you_mean
from lookalike._util.untrusted import LARGEST_LIST, read_json, read_text, read_yaml
from lookalike.training.settings import Settings, names

if TYPE_CHECKING:  # the command line needs RunFolder only, and starts faster without these
    from lookalike.training.log import Log
    from lookalike.training.loop import Progress


class RunFolder:
    """Reads and writes the files of a run.

    Args:
        path: The folder; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.state_note = ""  # about the state that was read
        self._lock = FolderLock(path)
        self._previous_file = path / "state" / "previous.pt"
        self._checksum_file = path / "state" / "checksums.json"
        self._good: list[str] = []  # checksum of the good state on disk
        self._last_is_good = False  # a damaged state must not become the one before

    def lock(self) -> None:
        """Keep other processes from training in this folder, which is created.

        Raises:
            ValueError: If it is a file or cannot be written.
            FolderInUse: If another process trains in it.
        """
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"--out must be a folder, got the file {self.path}")
        require_writable(self.path)
        self._lock.acquire()

    def unlock(self) -> None:
        """Release the folder; remove it if nothing was written."""
        self._lock.release()

    @property
    def state_file(self) -> Path:
        """The file with the state to resume from."""
        return self.path / "state" / "last.pt"

    def refuse_if_taken(self) -> None:
        """Raise ValueError if a new run would write into existing files."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"--out must be a folder, got the file {self.path}")
        require_writable(self.path)
        if self.path.exists() and any(entry.name != LOCK for entry in self.path.iterdir()):
            hint = "choose another --out"
            if (self.path / "settings.yaml").exists():
                hint = "--resume continues it"
            raise ValueError(f"{self.path} exists and is not empty: {hint}")

    def refuse_fewer_steps(self, steps: int) -> None:
        """Raise ValueError if the run has already done more than ``steps`` steps."""
        if not self.state_file.exists():
            return
        done = int(self.read_state(mapped=True)["progress"]["step"])
        if steps < done:
            raise ValueError(
                f"the run in {self.path} has done {done} steps: --steps must be at least that, got {steps}"
            )

    def write_settings(self, settings: Settings) -> None:
        """Write ``settings.yaml``."""
        write_checked(self.path / "settings.yaml", to_yaml(settings))

    def read_settings(self) -> Settings:
        """Read ``settings.yaml``.

        Returns:
            The settings.

        Raises:
            ValueError: If there is no run, or the file is damaged or has unknown or bad settings.
        """
        path = self.path / "settings.yaml"
        if not path.exists():
            raise ValueError(f"{self.path} is not the folder of a run: it has no settings.yaml")
        try:
            values = read_yaml(path)
        except yaml.YAMLError as error:
            raise ValueError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
        if not isinstance(values, dict):
            raise ValueError(f"{path} must hold settings by name, got {type(values).__name__}")
        for name in values:
            if name not in names():
                raise ValueError(
                    f"{path} has a setting that does not exist: {name!r}{did_you_mean(str(name), names())}"
                )
        for name in ("out", "cache"):
            if values.get(name) is not None:
                values[name] = Path(values[name])
        for name in ("betas", "restarts"):
            if name in values:
                values[name] = tuple(values[name])
        return Settings(**values)

    def write_json(self, name: str, content: Any) -> None:
        """Write a JSON file; characters that UTF-8 cannot hold, as in odd file names, become JSON escapes."""
        text = json.dumps(content, indent=2, ensure_ascii=False)
        write_checked(self.path / name, text.encode(errors="backslashreplace").decode() + "\n")

    def read_json(self, name: str) -> Any:
        """Read a JSON file."""
        return read_json(self.path / name, LARGEST_LIST)

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        """Write ``metrics.csv``; rows may have different columns."""
        columns: dict[str, None] = {}
        for row in rows:
            columns |= dict.fromkeys(row)
        text = StringIO()
        writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_checked(self.path / "metrics.csv", text.getvalue())

    def read_metrics(self) -> list[dict[str, str]]:
        """Read ``metrics.csv``."""
        text = read_text(self.path / "metrics.csv", LARGEST_LIST)
        return list(csv.DictReader(StringIO(text, newline="")))

    def write_state(self, state: dict[str, Any]) -> None:
        """Write the state to resume from, and keep the one before it; OSError if the disk is full."""
        with replacing(self.state_file) as unfinished:
            try:
                torch.save(state, unfinished)
            except RuntimeError as error:  # raised by torch if the disk is full
                raise OSError(f"{self.state_file} could not be written, is the disk full? {error}") from error
            checksum = hash_content(unfinished)
            write_checksums(self._checksum_file, [checksum, *self._good])
            if self._last_is_good:
                with replacing(self._previous_file) as copy:
                    _link_or_copy(self.state_file, copy)
        self._good, self._last_is_good = [checksum], True

    def read_state(self, mapped: bool = False) -> dict[str, Any]:
        """Read the state that was saved last, or the one before it if that is damaged; ``state_note`` says so.

        Args:
            mapped: Leave tensors on disk until they are used.

        Returns:
            The state.

        Raises:
            ValueError: If both are damaged.
        """
        self.state_note = ""
        accepted = read_checksums(self._checksum_file)
        if accepted is None:
            self.state_note = (
                f"{self.state_file} has no checksum, so damage cannot be noticed: an earlier version wrote it"
            )
        try:
            return self._load_state(self.state_file, accepted, mapped)
        except ValueError:
            if accepted is None or not self._previous_file.exists():
                raise
            state = self._load_state(self._previous_file, accepted, mapped)
        step = state["progress"]["step"]
        self.state_note = f"{self.state_file} is damaged: continuing from the state before it, after step {step}"
        return state

    def _load_state(self, path: Path, accepted: list[str] | None, mapped: bool) -> dict[str, Any]:
        checksum = ""
        try:
            checksum = hash_content(path)
            if accepted is None or checksum in accepted:
                state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
        except Exception as error:
            raise ValueError(
                f"{path} cannot be read: it is no state of a run, or damaged ({type(error).__name__})"
            ) from None
        if accepted is not None and checksum not in accepted:
            raise ValueError(
                f"{path} cannot be read: its checksum differs, so it is damaged. Restore a copy, or start a new run"
            )
        self._good, self._last_is_good = [checksum], path == self.state_file
        return state


class Checkpoint:
    """Saves and restores the state of a run.

    Args:
        folder: Folder of the run.
        parts: Everything with a state, by name; None for what the run does not have.
        log: Log of the run.
        fingerprints: Of the data, which a resumed run must have again.
    """

    def __init__(self, folder: RunFolder, parts: dict[str, Any], log: "Log", fingerprints: list[str]) -> None:
        self.folder, self.parts, self.log, self.fingerprints = folder, parts, log, fingerprints

    def save(self, progress: "Progress") -> None:
        """Write the state and the rows of the log."""
        state: dict[str, Any] = {"data": self.fingerprints, "progress": asdict(progress)}
        for name, part in self.parts.items():
            state[name] = None
            if part is not None:
                state[name] = part.state_dict()
        state["log"] = self.log.state_dict()
        self.folder.write_state(state)
        self.folder.write_metrics(self.log.rows)

    def restore(self, state: dict[str, Any], device: torch.device) -> None:
        """Restore all parts and the log.

        Args:
            state: What ``RunFolder.read_state`` returned.
            device: Device of the log's sums.
        """
        for name, part in self.parts.items():
            if part is not None:
                part.load_state_dict(state[name])
        self.log.load_state_dict(state["log"], device, state["progress"]["seconds"])


def to_yaml(settings: Settings, comments: bool = False) -> str:
    """Format settings as YAML.

    Args:
        settings: What to format.
        comments: Add the help text of each setting.

    Returns:
        The text of a YAML file.
    """
    values = {name: _plain(value) for name, value in asdict(settings).items()}
    if not comments:
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    lines = []
    for entry in Settings.__dataclass_fields__.values():
        line = yaml.safe_dump({entry.name: values[entry.name]}, default_flow_style=True, width=10**6)
        lines.append(f"{line.strip()[1:-1]}  # {entry.metadata['help']}")
    return "\n".join(lines) + "\n"


def _link_or_copy(source: Path, copy: Path) -> None:
    copy.unlink()
    try:
        copy.hardlink_to(source)
    except OSError:  # a file system without links
        shutil.copyfile(source, copy)


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return list(value)
    return value
