"""The page of ``lookalike doctor`` in a browser: keys decide, and the saved file has the decisions."""

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest

from lookalike.cli import main

pytestmark = pytest.mark.slow


def test_keys_decide_and_the_file_says_so(browser: Any, class_folders: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    shutil.copytree(class_folders, folder)
    for number in range(2):
        shutil.copy(folder / "class0" / f"{number}.png", folder / "class1" / f"copy{number}.png")
    assert main(["doctor", str(folder), "--out", str(tmp_path / "out"), "--workers", "0", "--engine", "torch"]) == 0
    page = browser.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.goto((tmp_path / "out" / "doctor.html").as_uri())
    findings = page.locator(".finding")
    assert findings.count() >= 2
    assert findings.nth(0).locator("img").count() == 2, "side by side"
    assert findings.nth(0).locator("[aria-pressed=true]").inner_text() == "drop"
    page.keyboard.press("k")
    assert findings.nth(0).locator("[aria-pressed=true]").inner_text() == "keep"
    assert "current" in (findings.nth(1).get_attribute("class") or "")
    findings.nth(1).get_by_text("drop").click()
    with page.expect_download() as saved:
        page.locator("#save").click()
    saved.value.save_as(tmp_path / "decisions.csv")
    with (tmp_path / "decisions.csv").open(newline="") as file:
        actions = {row["path"]: row["action"] for row in csv.DictReader(file) if row["kind"] == "exact duplicate"}
    assert actions == {"class1/copy0.png": "keep", "class1/copy1.png": "drop"}
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert not errors
    page.close()
    applied = ["doctor", str(folder), "--out", str(tmp_path / "out"), "--fixes", str(tmp_path / "decisions.csv")]
    assert main(applied) == 0
    corrected = (tmp_path / "out" / "corrected.csv").read_text()
    assert "copy0.png" in corrected
    assert "copy1.png" not in corrected
