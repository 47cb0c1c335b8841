"""Runs in processes of their own: killed without warning, and shared by two."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from test_loop import assert_same, final, settings

from lookalike.training import train

FLAGS = [
    *("--backbone", "resnet20", "--dim", "16", "--pooling-settings", "{num_prototypes: 8, memory: 64}"),
    *("--batch-size", "8", "--per-class", "2", "--log-every", "3", "--workers", "0", "--device", "cpu"),
]


def command(data: Path, out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "lookalike.app", "train", str(data), "--out", str(out), *FLAGS, *more]


def environment() -> dict[str, str]:
    """As many threads as here: the order of sums depends on it."""
    return {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}


def test_a_killed_run_goes_on_bit_for_bit(class_folders: Path, tmp_path: Path) -> None:
    out, steps = tmp_path / "killed", ["--steps", "40", "--evaluate-every", "20", "--save-every", "1"]
    chance = torch.Generator().manual_seed(int(time.time()))
    for kill in range(2):
        after = int(torch.randint(1, 18, (), generator=chance)) + 18 * kill
        process = subprocess.Popen(
            command(class_folders, out, *steps, "--resume"), env=environment(), stderr=subprocess.PIPE, text=True
        )
        try:
            deadline = time.monotonic() + 120
            while process.poll() is None and _steps_saved(out) < after and time.monotonic() < deadline:
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL, f"it was to be killed after step {after}: {process.stderr.read()}"
        finally:
            process.kill()
            process.stderr.close()
    changes = {"steps": 40, "evaluate_every": 20, "save_every": 1}
    train(settings(class_folders, out, resume=True, **changes))
    train(settings(class_folders, tmp_path / "whole", **changes))
    assert_same(tmp_path / "whole", out)


def _steps_saved(out: Path) -> int:
    file = out / "state" / "last.pt"
    return torch.load(file, weights_only=True)["progress"]["step"] if file.exists() else -1


@pytest.mark.parametrize("launcher", ["torchrun, pictures, a proxy loss", "fabric, frozen"])
def test_two_processes_do_what_one_does(launcher: str, class_folders: Path, tmp_path: Path) -> None:
    # Three steps agree to 2e-6. One process, its weights nudged by 1e-6, is 4e-2 off after six: more would test chaos.
    steps = ["--steps", "3", "--evaluate-every", "2", "--save-every", "1", "--optimiser", "sgd"]
    changes: dict[str, object] = {"steps": 3, "evaluate_every": 2, "save_every": 1, "optimiser": "sgd"}
    line = command(class_folders, tmp_path / "two", *steps)
    if launcher.startswith("torchrun"):
        # batch norm is frozen: its statistics would be those of half a batch
        line += ["--loss", "proxy-anchor", "--freeze-batch-norm", "--warm-up", "0", "--per-class", "2"]
        changes |= {"loss": "proxy-anchor", "freeze_batch_norm": True, "warm_up": 0, "per_class": 2}
        line[1:3] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "lookalike.app"]
    else:
        line += ["--freeze-backbone", "--start", "pca", "--devices", "2", "--cache", str(tmp_path / "cache")]
        changes |= {"freeze_backbone": True, "start": "pca"}
    ran = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    train(settings(class_folders, tmp_path / "one", **changes))
    one, two = final(tmp_path / "one"), final(tmp_path / "two")
    assert one.keys() == two.keys()
    for name in one:
        if name != "rows":
            torch.testing.assert_close(
                two[name], one[name], rtol=1e-3, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}"
            )
