"""Addresses on the hub: what looks like a path is refused before the hub's cache sees it."""

import pytest

from lookalike.models import hub

GOOD = ["hf:me/birds", "hf:me/birds@main", "hf:me/birds@refs/pr/1", "hf:me/birds@v1.0-rc_2", "hf:me/b.c@" + "0a" * 20]
BAD = ["../x", "..", ".", "/etc", "a/../b", "a//b", "a/", "./a", ".git", "x..y", "a\\b", "~", "a\0b", "a b", "C:", "é"]
BAD += ["a" * 200, "a/b/c/d/e", "main\n", "%2e%2e/x", ""]


@pytest.mark.parametrize("address", [*(f"hf:me/birds@{word}" for word in BAD), "hf:../..", "hf:me/..", "hf:./birds"])
def test_paths_never_reach_the_file_system(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("it was called"))
    with pytest.raises(ValueError, match="a model on the hub is called"):
        hub.fetch(address)


@pytest.mark.parametrize("address", GOOD)
def test_names_and_revisions_pass_unchanged(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    calls = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **more: calls.append((name, more)) or "/x")
    hub.fetch(address)
    name, _, revision = address.removeprefix("hf:").partition("@")
    assert (calls[0][0], calls[0][1]["revision"]) == (name, revision or None)
