"""A run is a folder; every file in it is whole at any moment.

settings.yaml      what was asked, with everything that was decided
data.json          what it was trained and validated on
model.json, model.safetensors   the best weights so far, all that ``lookalike.load`` needs
metrics.csv, events*            what happened, for tables and TensorBoard
state/last.pt      to go on from
figures.json       the summary
"""

import csv
import json
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import torch
import yaml

from lookalike._util.files import replacing, require_writable, write_text
from lookalike._util.suggestions import did_you_mean
from lookalike.training.settings import FREE_ON_RESUME, Settings, names


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def state_file(self) -> Path:
        return self.path / "state" / "last.pt"

    def refuse_if_taken(self) -> None:
        """A new run never writes into what is there."""
        if self.path.exists() and not self.path.is_dir():
            raise ValueError(f"--out must be a folder, got the file {self.path}")
        require_writable(self.path)
        if self.path.exists() and any(self.path.iterdir()):
            hint = "--resume goes on with it" if (self.path / "settings.yaml").exists() else "choose another --out"
            raise ValueError(f"{self.path} exists and is not empty: {hint}")

    def write_settings(self, settings: Settings) -> None:
        write_text(self.path / "settings.yaml", to_yaml(settings))

    def read_settings(self) -> Settings:
        path = self.path / "settings.yaml"
        if not path.exists():
            raise ValueError(f"{self.path} is not the folder of a run: it has no settings.yaml")
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8"))
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
            values[name] = Path(values[name]) if values.get(name) is not None else None
        if "betas" in values:
            values["betas"] = tuple(values["betas"])
        return Settings(**values)

    def write_json(self, name: str, content: Any) -> None:
        text = json.dumps(content, indent=2, ensure_ascii=False)
        # what UTF-8 cannot hold (names of files in another encoding) becomes an escape, which JSON reads back
        write_text(self.path / name, text.encode(errors="backslashreplace").decode() + "\n")

    def read_json(self, name: str) -> Any:
        return json.loads((self.path / name).read_text(encoding="utf-8"))

    def write_metrics(self, rows: list[dict[str, Any]]) -> None:
        columns = list(dict.fromkeys(name for row in rows for name in row))
        text = StringIO()
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.path / "metrics.csv", text.getvalue())

    def read_metrics(self) -> list[dict[str, str]]:
        with (self.path / "metrics.csv").open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def write_state(self, state: dict[str, Any]) -> None:
        with replacing(self.state_file) as unfinished:
            try:
                torch.save(state, unfinished)
            except RuntimeError as error:  # what torch makes of a full disk
                raise OSError(f"{self.state_file} could not be written, is the disk full? {error}") from error

    def refuse_fewer_steps(self, steps: int) -> None:
        """A run that goes on cannot end before where it is."""
        done = int(self.read_state(mapped=True)["progress"]["step"]) if self.state_file.exists() else 0
        if steps < done:
            raise ValueError(
                f"the run in {self.path} has done {done} steps: --steps must be at least that, got {steps}"
            )

    def read_state(self, mapped: bool = False) -> dict[str, Any]:
        """What was saved last; ``mapped`` leaves the tensors on the disk until they are looked at."""
        try:
            return torch.load(self.state_file, map_location="cpu", weights_only=True, mmap=mapped)
        except Exception as error:
            raise ValueError(
                f"{self.state_file} cannot be read: it is no state of a run, or damaged ({type(error).__name__})"
            ) from None


def to_yaml(settings: Settings, comments: bool = False) -> str:
    """The settings as YAML; with ``comments``, each with its explanation."""
    values = {name: _plain(value) for name, value in asdict(settings).items()}
    if not comments:
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    lines = []
    for entry in Settings.__dataclass_fields__.values():
        line = yaml.safe_dump({entry.name: values[entry.name]}, default_flow_style=True, width=10**6)
        lines.append(f"{line.strip()[1:-1]}  # {entry.metadata['help']}")
    return "\n".join(lines) + "\n"


def differences(old: Settings, new: Settings) -> list[str]:
    """Settings of a resumed run that are not what they were, as ``name: old -> new``."""
    before, now = asdict(old), asdict(new)
    changed = [name for name in before if name not in FREE_ON_RESUME and before[name] != now[name]]
    return [f"{name}: {before[name]} -> {now[name]}" for name in changed]


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else list(value) if isinstance(value, tuple) else value
