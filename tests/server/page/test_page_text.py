"""The text box: there with a text tower, absent without one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page_helpers import expect, hits_shown, searched, serving

from lookalike import index
from lookalike.inference.model import TrainedModel
from lookalike.models import Embedder, create_backbone
from lookalike.server import create_app

open_clip = pytest.importorskip("open_clip", reason="needs the extra text")
TINY = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 8},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


def test_the_text_box(opening: Callable[..., Any], page: Any, class_folders: Path, tmp_path: Path) -> None:
    expect(page.locator("#text-form")).to_be_hidden()
    (tmp_path / "page-towers.json").write_text(json.dumps(TINY))
    open_clip.add_model_config(tmp_path)
    backbone = create_backbone("open_clip:page-towers", weights="none")
    model = TrainedModel(Embedder(backbone, None, "average", input_spec=backbone.spec), "torch")
    with index.create(tmp_path / "text.idx", model, engine="torch") as idx:
        index.sync(idx, model, class_folders)
        with serving(create_app(idx, model)) as url:
            worded = opening(url, viewport={"width": 390, "height": 800})
            box = worded.get_by_label("Search by text")
            box.fill("narrow stripes")
            assert searched(worded, lambda: box.press("Enter"))["text"] == "narrow stripes"
            assert len(hits_shown(worded)) == 12
            found = worded.locator("#hits img").evaluate_all("all => all.map(one => one.src.split('/').at(-2))")
            hits = idx.search(model.embed_text(["narrow stripes"]), 12)[0]
            assert found == [hit.item.id for hit in hits]
            expect(worded.locator("#query-title")).to_have_text("“narrow stripes”")
            expect(worded.locator("#stage")).to_be_hidden()
            worded.locator("#hits .picture").first.click()
            expect(worded.locator("#viewer-picture")).to_be_visible()
            expect(worded.locator("#match-query")).to_be_hidden()
            worded.keyboard.press("Escape")
            worded.locator("#tab-map").click()
            expect(worded.locator("#map-legend li:has(.ring)").first).to_have_text("the query")
            assert worded.evaluate("document.documentElement.scrollWidth") <= 390
