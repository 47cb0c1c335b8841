"""Results are selected, kept across searches, and exported."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from page_helpers import expect, search_with, striped

from lookalike import index


def shown_ids(collection: index.Index, item: index.Item) -> list[str]:
    hits = collection.search(collection.vectors([item.id]), 13)[0]
    return [hit.item.id for hit in hits if hit.item.id != item.id][:12]


def test_select_keep_and_export(page: Any, collection: index.Index) -> None:
    item = striped(collection)
    search_with(page, item)
    ids = shown_ids(collection, item)
    expect(page.locator("#basket")).to_be_hidden()
    page.locator("#hits .select").nth(1).check()
    page.locator("#hits .select").nth(4).click(modifiers=["Shift"])
    expect(page.locator("#basket-count")).to_have_text("4 pictures selected")
    assert page.locator("#hits .select:checked").count() == 4
    page.locator("#hits .more").first.click()
    expect(page.locator("#query-detail")).not_to_have_text(item.file.name)
    expect(page.locator("#basket-count")).to_have_text("4 pictures selected")
    with page.expect_download() as download:
        page.locator("[data-export=csv]").click()
    rows = list(csv.DictReader(Path(download.value.path()).read_text().splitlines()))
    assert [row["id"] for row in rows] == ids[1:5]
    with page.expect_download() as download:
        page.locator("[data-export=zip]").click()
    assert download.value.suggested_filename == "selection.zip"
    assert Path(download.value.path()).read_bytes().startswith(b"PK")
    page.reload()
    expect(page.locator("#basket-count")).to_have_text("4 pictures selected")
    page.locator("#basket-clear").click()
    expect(page.locator("#basket")).to_be_hidden()


def test_where_the_file_is(opening: Callable[..., Any], collection: index.Index) -> None:
    page = opening(permissions=["clipboard-read", "clipboard-write"])
    item = striped(collection)
    search_with(page, item)
    first = collection.get(shown_ids(collection, item)[:1])[0]
    page.locator("#hits .picture").first.click()
    assert first is not None
    expect(page.locator("#viewer-path")).to_have_text(first.path)
    page.locator("#viewer-copy").click()
    expect(page.locator("#viewer-copy")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == first.path
    with page.context.expect_page() as opened:
        page.locator("#viewer-open").click()
    # Not wait_for_function: it calls eval in the page, which the policy forbids.
    expect(opened.value.locator("img")).to_have_js_property("naturalWidth", 32)
    assert opened.value.evaluate("document.contentType") == "image/png"
    with page.expect_download() as download:
        page.locator("#viewer-original").click()
    assert download.value.suggested_filename == first.file.name
    assert Path(download.value.path()).read_bytes() == first.file.read_bytes()
