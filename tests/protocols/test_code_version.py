"""What changes a figure changes the version of the code, and what people are told meanwhile does not."""

import shutil
from pathlib import Path

import pytest

import lookalike
from lookalike.protocols import code_version as versions


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sources, to be changed."""
    root = tmp_path / "lookalike"
    shutil.copytree(Path(lookalike.__file__).parent, root, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(lookalike, "__file__", str(root / "__init__.py"))
    return root


def version() -> str:
    return versions.code_version.__wrapped__()  # as it is now, not as it was when first asked


def reword(file: Path) -> None:
    file.write_text(file.read_text(encoding="utf-8") + "\n# other words\n", encoding="utf-8")


def test_what_is_told_is_left_out(copied: Path) -> None:
    before = version()
    for name in ("training/display.py", "report/look.py", "studies/outcome.py"):
        assert (copied / name).is_file()
        reword(copied / name)
        assert version() == before
    assert all((copied / name).is_file() for name in versions.TELLING)


@pytest.mark.parametrize(
    "name", ["training/loop.py", "training/log.py", "pooling/gsp.py", "data/benchmarks/cub.py", "protocols/cells.py"]
)
def test_what_trains_and_measures_counts(copied: Path, name: str) -> None:
    before = version()
    reword(copied / name)
    assert version() != before


def test_a_new_file_counts(copied: Path) -> None:
    before = version()
    (copied / "pooling" / "new.py").touch()
    assert version() != before
