"""The wheel: it contains the library alone, installs into an empty environment and runs there."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
LAYER = """
import torch, lookalike
pool = lookalike.GeneralizedSumPool(dim=8, num_prototypes=4, keep=0.3, sharpness=5.0)
vectors = pool(torch.randn(2, 8, 3, 3))
print(tuple(vectors.shape), lookalike.__file__)
"""
# Refuses every module outside the standard library, but for torch, numpy and what torch itself needs.
ONLY_TORCH = """
import sys
from importlib.metadata import requires

allowed = {"torch", "numpy", "lookalike", "functorch", "torchgen"} | set(sys.stdlib_module_names)
for requirement in requires("torch"):
    allowed.add(requirement.partition(";")[0].strip().split("[")[0].split(">")[0].split("=")[0].replace("-", "_"))

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refuse())
"""


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program without this repository on its path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for entry in ("src", "tests", "perf", "studies", "examples"):
        shutil.copytree(ROOT / entry, source / entry, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    built = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", source)
    assert built.returncode == 0, built.stdout + built.stderr
    (path,) = (source / "dist").iterdir()
    return path


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty environment with the wheel, which sees the dependencies that are installed here."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    installed = run(sys.executable, "-m", "pip", "--python", folder, "install", "--no-deps", "--no-index", wheel)
    assert installed.returncode == 0, installed.stderr
    (packages,) = folder.glob("lib/python*/site-packages")
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (packages / "dependencies.pth").write_text("\n".join(sorted(paths)))
    return folder / "bin"


def test_the_wheel_contains_the_library_and_nothing_else(wheel: Path) -> None:
    with ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name.partition("/")[0] for name in names} == {"lookalike", wheel.name.split("-py3")[0] + ".dist-info"}
    expected = set()
    for path in (ROOT / "src" / "lookalike").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            expected.add(path.relative_to(ROOT / "src").as_posix())
    assert {name for name in names if name.startswith("lookalike/")} == expected


def test_the_command_runs(environment: Path) -> None:
    shown = run(environment / "lookalike", "demo", "--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "example: lookalike demo" in shown.stdout


def test_the_layer_runs(environment: Path) -> None:
    done = run(environment / "python", "-c", LAYER)
    assert done.returncode == 0, done.stderr
    shape, file = done.stdout.strip().rsplit(" ", 1)
    assert shape == "(2, 8)"
    assert Path(file).is_relative_to(environment.parent)


def test_the_layer_needs_only_torch_and_numpy(environment: Path) -> None:
    done = run(environment / "python", "-c", ONLY_TORCH + LAYER)
    assert done.returncode == 0, done.stderr
    command = "from lookalike.cli import main; sys.exit(main(['train', 'pictures', '--out', 'run']))"
    failed = run(environment / "python", "-c", ONLY_TORCH + command)
    assert failed.returncode == 1
    assert failed.stderr.startswith("lookalike train: the package ")
    assert failed.stderr.endswith(' is not installed: pip install "lookalike[train]"\n')
    refused = run(environment / "python", "-c", ONLY_TORCH + "import PIL")
    assert "No module named 'PIL'" in refused.stderr
