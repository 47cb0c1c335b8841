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
    return [sys.executable, "-m", "lookalike", "train", str(data), "--out", str(out), *FLAGS, *more]


def environment() -> dict[str, str]:
    """As many threads as here: the order of sums depends on it."""
    return {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}


@pytest.mark.slow
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


def _options(changes: dict[str, object]) -> list[str]:
    options = []
    for name, value in changes.items():
        dashed = name.replace("_", "-")
        options += (
            [f"--{dashed}" if value else f"--no-{dashed}"] if isinstance(value, bool) else [f"--{dashed}={value}"]
        )
    return options


def _problems(out: Path) -> list[tuple[int, float]]:
    """When each problem but the last ended, and which it was."""
    rows = torch.load(out / "state" / "last.pt", weights_only=True)["log"]["rows"]
    return [(row["step"], row["problem"]) for row in rows if "problem" in row]


def _steps_saved(out: Path) -> int:
    file = out / "state" / "last.pt"
    return torch.load(file, weights_only=True)["progress"]["step"] if file.exists() else -1


CCP = {"loss": "c2", "ccp": True, "ccp_proxies": 1, "ccp_pool": 3, "ccp_patience": 1, "validation": 0.4}
STEPS_OF_LIBC = 1
KINDS = {
    "torchrun, pictures, a proxy loss": {
        "loss": "proxy-anchor",
        "freeze_batch_norm": True,  # else its statistics would be those of half a batch
        "warm_up": 0,
        "per_class": 2,
    },
    "fabric, pictures, libc, gsp": {"loss": "libc", "zero_shot": 0.1, "freeze_batch_norm": True},
    "fabric, last stage": {"freeze_backbone": True, "train_stages": 1, "freeze_batch_norm": True, "start": "pca"},
    "fabric, frozen, ccp": {"freeze_backbone": True, "start": "pca", **CCP},
    "fabric, pictures, ccp with samples": {"freeze_batch_norm": True, "ccp_against": "samples", **CCP},  # 5 for two
}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", KINDS)
def test_two_processes_do_what_one_does(launcher: str, class_folders: Path, tmp_path: Path) -> None:
    # Three steps agree to 2e-6. One process, its weights nudged by 1e-6, is 4e-2 off after six: more would test chaos.
    # With LIBC, whose messages pass through attention, it is 9e-4 off after three.
    steps = STEPS_OF_LIBC if "libc" in launcher else 3
    changes: dict[str, object] = {**KINDS[launcher], "steps": steps, "evaluate_every": 1, "save_every": 1}
    changes["optimiser"] = "sgd"
    line = command(class_folders, tmp_path / "two", *_options(changes))
    if launcher.startswith("torchrun"):
        line[1:3] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "lookalike"]
    else:
        line += ["--devices", "2", "--cache", str(tmp_path / "cache")]
    ran = subprocess.run(line, env=environment(), capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    train(settings(class_folders, tmp_path / "one", **changes))
    one, two = final(tmp_path / "one"), final(tmp_path / "two")
    assert one.keys() == two.keys()
    if "ccp" in launcher:
        opened = [_problems(tmp_path / name) for name in ("one", "two")]
        assert opened[0] == opened[1]
        assert opened[0], "a run in which no problem ends says nothing about how they end"
    if "samples" in launcher:
        assert len(one["learner objective.objective.places"]) % 2
    for name in one:
        if name != "rows":
            torch.testing.assert_close(
                two[name], one[name], rtol=1e-3, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}"
            )
