"""Tables in the docs are those of the manifests in ``results/``."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "results" / "tables.py"
sys.path.insert(0, str(SCRIPT.parent))
import tables  # noqa: E402

MANIFESTS = sorted((ROOT / "results").glob("*.yaml"))


def test_the_docs_have_the_figures_of_the_manifests() -> None:
    checked = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_every_manifest_is_shown_somewhere() -> None:
    text = "".join((ROOT / page).read_text(encoding="utf-8") for page in tables.PAGES)
    for manifest in MANIFESTS:
        assert f"<!-- table: {manifest.stem}" in text, manifest.name


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_every_figure_has_data_seeds_budget_and_command(path: Path) -> None:
    manifest = yaml.safe_load(path.read_text(encoding="utf-8"))
    for name in ("title", "data", "budget", "seeds", "command"):
        assert manifest[name], name
    for row in manifest["rows"]:
        seeds = row.get("seeds", manifest["seeds"])  # of a row that has fewer
        assert set(seeds) <= set(manifest["seeds"])
        for name, values in row.items():
            if isinstance(values, list) and not row.get("fixed"):
                assert len(values) == len(seeds), (row, name)


def test_a_changed_figure_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest: dict[str, Any] = {
        "table": {"rows": "pooling", "columns": "loss", "metric": "MAP@R", "corner": "it"},
        "rows": [
            {"pooling": "average", "loss": "ms", "MAP@R": [1.0, 2.0]},
            {"pooling": "gsp", "loss": "ms", "MAP@R": [3.0]},
            {"pooling": "gsp", "loss": "c2", "MAP@R": [4.0]},
        ],
    }
    monkeypatch.setattr(tables, "read_manifest", lambda _: manifest)
    text = "before\n<!-- table: x -->\n\nold\n\n<!-- end of table -->\nafter\n"
    filled = tables.fill(text)
    assert "| it | ms | c2 |\n|---|---|---|\n| average | 1.5 ± 0.7 | \N{EN DASH} |\n| gsp | 3.0 | 4.0 |\n" in filled
    assert filled.startswith("before\n")
    assert filled.endswith("<!-- end of table -->\nafter\n")
    assert tables.fill(filled) == filled
    manifest["rows"][0]["MAP@R"] = [1.0, 2.2]
    assert tables.fill(filled) != filled
