"""A flipped bit in the saved state is noticed, and the run continues from the state before it."""

import random
import shutil
from pathlib import Path

import pytest
import torch

from lookalike.training.checkpoint import RunFolder

FLIPS = 300


def flip(file: Path, rng: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.unlink()  # previous.pt may be the same file
    file.write_bytes(content)


def write_states(path: Path) -> None:
    folder = RunFolder(path)
    for step in (1, 2):
        folder.write_state({"progress": {"step": step}, "weights": torch.full((16, 16), float(step))})


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    write_states(tmp_path / "good")
    rng = random.Random(0)
    for name in ("last.pt", "checksums.json", "previous.pt"):
        for _ in range(FLIPS):
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            shutil.copytree(tmp_path / "good", tmp_path / "run")
            flip(tmp_path / "run" / "state" / name, rng)
            folder = RunFolder(tmp_path / "run")
            try:
                state = folder.read_state()
            except ValueError:
                assert name == "checksums.json"
                continue
            step = state["progress"]["step"]
            assert torch.equal(state["weights"], torch.full((16, 16), float(step)))
            if name == "last.pt":
                assert step == 1
                assert "continuing from the state before it, after step 1" in folder.state_note


def test_a_damaged_state_does_not_become_the_one_before(tmp_path: Path) -> None:
    write_states(tmp_path)
    flip(tmp_path / "state" / "last.pt", random.Random(1))
    folder = RunFolder(tmp_path)
    assert folder.read_state()["progress"]["step"] == 1
    folder.write_state({"progress": {"step": 3}})
    assert RunFolder(tmp_path).read_state()["progress"]["step"] == 3
    assert torch.load(tmp_path / "state" / "previous.pt")["progress"]["step"] == 1


def test_without_a_good_state_the_run_is_refused(tmp_path: Path) -> None:
    write_states(tmp_path)
    for name in ("last.pt", "previous.pt"):
        flip(tmp_path / "state" / name, random.Random(2))
    with pytest.raises(ValueError, match="its checksum differs, so it is damaged"):
        RunFolder(tmp_path).read_state()


def test_a_crash_between_checksum_and_state_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_states(tmp_path)
    replace = Path.replace

    def crash(self: Path, target: Path) -> Path:
        if target.name == "last.pt":
            raise OSError("power cut")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", crash)
    for _ in range(3):
        folder = RunFolder(tmp_path)
        assert folder.read_state()["progress"]["step"] == 2
        assert not folder.state_note
        with pytest.raises(OSError, match="power cut"):
            folder.write_state({"progress": {"step": 3}})
