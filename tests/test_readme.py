"""The README and the docs say what is true: their Python runs, their files exist, importing stays light."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lookalike.cli import main

ROOT = Path(__file__).parents[1]
TRAINING = [
    "--backbone",
    "resnet8-half",
    "--start",
    "random",
    "--no-freeze-backbone",
    "--size",
    "32",
    "--dim",
    "8",
    "--crop",
    "none",
    "--steps",
    "2",
]
TRAINING += ["--batch-size", "8", "--per-class", "2", "--evaluate-every", "2", "--workers", "0", "--device", "cpu"]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_python_in_the_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, class_folders: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    if page.name == "search.md":  # begins where somebody has trained a model
        scope["picture"] = shutil.copy(next(class_folders.rglob("*.png")), "new.jpg")
        shutil.copytree(class_folders, "my_pictures")
        assert main(["train", "my_pictures", "--out", "runs/mine", *TRAINING]) == 0
    if page.name == "improve.md":  # begins where somebody has an index
        assert main(["train", str(class_folders), "--out", "runs/mine", *TRAINING]) == 0
        assert main(["index", "runs/mine", str(class_folders), "--out", "mine.idx", "--cache", "none"]) == 0
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(compile(block, str(page), "exec"), scope)
    if page.name == "README.md":
        assert scope["vectors"].shape == (8, 128)  # type: ignore[attr-defined]
        assert scope["heat"].shape == (8, 7, 7)  # type: ignore[attr-defined]
        assert scope["share"].shape == (8, 64)  # type: ignore[attr-defined]
    if page.name == "use-one-part.md":
        assert scope["problems"].number > 1  # type: ignore[attr-defined]  # proxies were chosen anew
        assert scope["parts"]["memory"] > 0  # type: ignore[index]  # the memory joined in
        assert len(scope["trained"]) == 3  # type: ignore[arg-type]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_and_pictures_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).is_file(), target


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_options_in_the_page_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in re.findall(r"(lookalike \w+ [^\n`#]*--[^\n`#]*)", page.read_text()):
        command, *words = line.removeprefix("lookalike").split()
        main([command, "--help-all" if command == "train" else "--help"])
        known = set(re.findall(r"--[\w-]+", capsys.readouterr().out))
        for word in words:
            if word.startswith("--"):
                assert re.match(r"--[\w-]+", word)[0] in known, line  # type: ignore[index]


def test_files_that_contributing_follows_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = re.search(r"^### Follow one thing.*?(?=^## )", text, re.DOTALL | re.MULTILINE)
    assert table is not None
    paths = re.findall(r"`([\w/]+/\w+\.py)`", table[0])
    assert len(paths) > 15
    for path in paths:
        if "NAME" in path:
            continue
        folders = (ROOT / "src/lookalike", ROOT / "studies", ROOT / "studies/lookalike_studies")
        assert any((folder / path).is_file() for folder in folders), path


def test_tests_that_security_names_exist() -> None:
    file = Path()
    names = re.findall(r"`([\w/]*test_\w+\.py)?(?:::(test_\w+))?`", (ROOT / "docs/security.md").read_text())
    assert len(names) > 50
    for path, test in names:
        if path:
            file = ROOT / ("" if "/" in path else "tests/server") / path
        assert not test or f"def {test}(" in file.read_text(), f"{path}::{test}"
        assert file.is_file(), path


def test_make_targets_of_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_importing_pulls_in_nothing_but_torch() -> None:
    code = """
import sys, torch
before = {name.split(".")[0] for name in sys.modules}
import lookalike
print(*({name.split(".")[0] for name in sys.modules} - before))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["lookalike"]


def test_the_documentation_builds(tmp_path: Path) -> None:
    """``--strict``: a broken link, an unknown API name or a page outside the navigation is an error."""
    # Not with --quiet: it drops warnings before --strict can count them.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "GeneralizedSumPool" in (tmp_path / "site" / "reference" / "pooling" / "index.html").read_text()
