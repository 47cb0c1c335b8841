"""The tab "Doctor": a person examines, decides with one key each, sees the effect and applies; another one watches."""

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from page_helpers import expect, serving

from lookalike import index
from lookalike.inference.model import TrainedModel
from lookalike.server import create_app


def test_examine_decide_and_apply(
    opening: Callable[..., Any], collection: index.Index, model: TrainedModel, tmp_path: Path
) -> None:
    path = tmp_path / "faulty.idx"
    shutil.copytree(collection.path, path)
    with index.open(path) as idx:
        items = idx.items(where="label=class1")[:2]
        for number, item in enumerate(items):
            shutil.copy(item.file, tmp_path / f"twice{number}.png")
            copy = index.file_item(tmp_path / f"twice{number}.png", label="class0")
            idx.add([copy._replace(id=f"zz{number}")], idx.vectors([item.id]))  # after the picture that it repeats
        with serving(create_app(idx, model)) as url:
            anna, ben = opening(url), opening(url)
            anna.locator("#tab-doctor").click()
            expect(anna.locator("#doctor-status")).to_have_text("The pictures were not examined yet.")
            anna.locator("#doctor-start").click()
            expect(anna.locator("#doctor-stop")).to_be_visible()
            expect(anna.locator("#doctor-status")).to_contain_text("findings open", timeout=600_000)
            ben.locator("#tab-doctor").click()
            for page in (anna, ben):
                page.locator("#doctor-kind").select_option("exact duplicate")
                expect(page.locator("#doctor-findings .finding")).to_have_count(2)
                expect(page.locator("#doctor-findings .finding").first.locator("img")).to_have_count(2)
            rows = anna.locator("#doctor-findings .finding")
            expect(rows.nth(0).locator('[aria-pressed="true"]')).to_have_attribute("data-action", "drop")
            rows.nth(0).focus()
            anna.keyboard.press("r")
            expect(rows.nth(1)).to_be_focused()
            anna.keyboard.press("k")
            expect(anna.locator("#doctor-kind")).to_contain_text("2 decided")
            ben.evaluate("dispatchEvent(new Event('focus'))")
            shown = ben.locator('#doctor-findings .finding [aria-pressed="true"]')
            expect(shown.nth(0)).to_have_attribute("data-action", "relabel")
            expect(shown.nth(1)).to_have_attribute("data-action", "keep")
            ben.locator('#doctor-findings .finding [data-action="drop"]').nth(1).click()  # the last one counts
            expect(ben.locator("#doctor-kind")).to_contain_text("2 decided")
            anna.evaluate("dispatchEvent(new Event('focus'))")
            expect(rows.nth(1).locator('[aria-pressed="true"]')).to_have_attribute("data-action", "drop")
            anna.locator("#doctor-effect").click()
            expect(anna.locator("#doctor-effect-text")).to_contain_text("MAP@R")
            with anna.expect_download() as download:
                anna.locator("#doctor-csv").click()
            table = list(csv.DictReader(Path(download.value.path()).read_text().splitlines()))
            corrected = {Path(row["path"]).name: row["label"] for row in table}
            assert [name in corrected for name in ("twice0.png", "twice1.png")].count(True) == 1
            count = idx.count()
            anna.locator("#doctor-apply").click()
            expect(anna.locator("#doctor-pending")).to_contain_text("Press again")
            assert idx.count() == count
            anna.locator("#doctor-apply").click()
            expect(anna.locator("#doctor-status")).to_contain_text("relabelled")
            assert idx.count() < count
            left = [item.label for item in idx.items() if "twice" in item.path]
            assert left == ["class1"]
            expect(anna.locator("#picture-count")).to_have_text(f"{idx.count()} pictures")
            anna.set_viewport_size({"width": 390, "height": 800})
            assert anna.evaluate("document.documentElement.scrollWidth") <= 390
