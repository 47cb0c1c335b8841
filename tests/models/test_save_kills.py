"""A folder has a complete model at every moment, also if the process that replaces it is killed at any step."""

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch

from lookalike.index import fingerprint_of
from lookalike.models import Embedder, create_backbone, load_model, save_model

STEPS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree", "os.chmod"}
MOST_STEPS = 200


def make(dim: int, seed: int) -> Embedder:
    torch.manual_seed(seed)
    return Embedder(create_backbone("resnet20", weights="none"), dim=dim, pooling="average")


def save_until(embedder: Embedder, folder: Path, last_step: int) -> bool:
    """Save in another process, which kills itself at a step of the file system; whether it was killed."""
    child = os.fork()
    if child == 0:
        count = 0

        def kill_at_step(event: str, _: tuple[object, ...]) -> None:
            nonlocal count
            if event in STEPS:
                count += 1
                if count == last_step:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(kill_at_step)
        try:
            save_model(embedder, folder)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("dim", [8, 16], ids=["same settings", "other settings"])
def test_a_killed_save_leaves_the_old_or_the_new_model(tmp_path: Path, dim: int) -> None:
    old, new = make(8, seed=1), make(dim, seed=2)
    save_model(old, tmp_path / "old")
    loaded = []
    for step in range(1, MOST_STEPS):
        folder = tmp_path / str(step)
        shutil.copytree(tmp_path / "old", folder)
        killed = save_until(new, folder, step)
        loaded.append(fingerprint_of(load_model(folder)))
        assert fingerprint_of(folder) == loaded[-1]
        save_model(new, folder)  # a leftover is no obstacle
        assert fingerprint_of(load_model(folder)) == fingerprint_of(new)
        assert not (folder / ".model-next").exists()
        shutil.rmtree(folder)
        if not killed:
            break
    else:
        raise AssertionError("the save was never completed")
    switch = loaded.index(fingerprint_of(new))
    assert 0 < switch < len(loaded) - 1
    assert set(loaded[:switch]) == {fingerprint_of(old)}
    assert set(loaded[switch:]) == {fingerprint_of(new)}
