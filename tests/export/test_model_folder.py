"""A folder for other people, and the hub it may come from: a small one, served here."""

import hashlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
import yaml

import lookalike
from lookalike.export import folder, write_folder
from lookalike.models import Embedder
from lookalike.models.hub import fetch

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module")
def embedder() -> Embedder:
    torch.manual_seed(0)
    return Embedder("resnet8-half", dim=8, pooling_settings={"num_prototypes": 4})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """What training leaves beside the model, as far as a card tells of it."""
    path = tmp_path / "run"
    path.mkdir()
    trained = {"pictures": 1200, "classes": ["a", "b"]}
    (path / "data.json").write_text(json.dumps({"name": "folder birds", "training": trained, "held_out": None}))
    (path / "settings.yaml").write_text("data: /home/me/secret\nout: /home/me/runs\nloss: c2\nlr: 0.25\nseed: 3\n")
    (path / "figures.json").write_text(
        json.dumps(
            {"best": {"MAP@R": 0.1234, "P@1": 0.5, "R@1": 0.5, "R@2": 0.6, "queries": 9}, "backbone": {"MAP@R": 0.1}}
        )
    )
    return path


def test_the_folder_loads_and_its_card_tells(tmp_path: Path, run: Path, embedder: Embedder) -> None:
    out = tmp_path / "shared" / "birds"
    write_folder(embedder, out, run)
    assert sorted(file.name for file in out.iterdir()) == ["README.md", "model.json", "model.safetensors"]
    assert [file.name for file in out.parent.iterdir()] == ["birds"]
    loaded = lookalike.load(out, "cpu").embedder
    for name, value in embedder.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name])

    text = (out / "README.md").read_text()
    _, front, body = text.split("---\n", 2)
    known = yaml.safe_load(front)
    assert known["library_name"] == "lookalike"
    assert known["pipeline_tag"] == "image-feature-extraction"
    (result,) = known["model-index"][0]["results"]
    assert result["metrics"] == [{"type": "MAP@R", "value": 0.1234}, {"type": "P@1", "value": 0.5}]
    assert "folder birds: 1,200 pictures of 2 classes." in body
    assert "| MAP@R | 12.34 % | 10.00 % |" in body
    assert "| P@1 | 50.00 % | - |" in body
    assert "| R@2 |" in body
    assert "| R@1 |" not in body, "it is P@1"
    assert "- MAP@R: like P@R" in body
    assert "| loss | c2 |" in body
    assert "gsp (num_prototypes=4)" in body
    assert f"resize its shorter side to {embedder.input_spec.resize_to}, " in body
    assert "/home/me" not in text


def test_a_model_of_which_nothing_is_known(tmp_path: Path, embedder: Embedder) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "figures.json").write_text("{ torn")
    write_folder(embedder, tmp_path / "plain", tmp_path / "empty")
    text = (tmp_path / "plain" / "README.md").read_text()
    assert "model-index" not in text
    assert "Trained on" not in text
    assert "## Preprocessing" in text


def test_in_a_folder_that_is_there_nothing_else_is_touched(tmp_path: Path, embedder: Embedder) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    write_folder(embedder, tmp_path)
    write_folder(embedder, tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert lookalike.load(tmp_path, "cpu").dim == 8


def test_a_folder_appears_whole_or_not_at_all(
    tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path, text: str) -> None:
        raise OSError(f"no space for {len(text)} letters in {path}")

    monkeypatch.setattr(folder, "write_text", fails)  # the last thing that is done
    with pytest.raises(OSError, match="no space"):
        write_folder(embedder, tmp_path / "birds")
    assert list(tmp_path.iterdir()) == []


class Hub(BaseHTTPRequestHandler):
    """What of the hub's interface is asked for: the list of files, the head of each, each."""

    files: dict[str, bytes]
    asked: list[str]

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = self.path.split("?")[0]
        self.asked.append(path)
        if path.startswith("/api/models/me/birds/"):
            if "/tree/" in path:
                listing: Any = [
                    {"type": "file", "path": name, "size": len(text), "oid": hashlib.sha1(text).hexdigest()}
                    for name, text in self.files.items()
                ]
            else:
                listing = {"id": "me/birds", "sha": COMMIT, "siblings": [{"rfilename": name} for name in self.files]}
            return self.send(json.dumps(listing).encode(), body)
        name = path.removeprefix(f"/me/birds/resolve/{COMMIT}/")
        if name in self.files:
            return self.send(self.files[name], body)
        self.send_response(404)
        self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", "0")
        return self.end_headers()

    def send(self, content: bytes, body: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path, embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    constants = pytest.importorskip("huggingface_hub.constants")
    write_folder(embedder, tmp_path / "birds")
    Hub.files = {file.name: file.read_bytes() for file in (tmp_path / "birds").iterdir()}
    Hub.files["pytorch_model.bin"] = b"a pickle that nobody asked for"
    Hub.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_PROGRESS_BARS", True)
    yield Hub
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_model_from_the_hub(served: type[Hub], embedder: Embedder, monkeypatch: pytest.MonkeyPatch) -> None:
    model = lookalike.load("hf:me/birds", "cpu")
    for name, value in embedder.state_dict().items():
        assert torch.equal(value, model.embedder.state_dict()[name])
    assert any("model.safetensors" in path for path in served.asked)
    assert not any("pytorch_model.bin" in path for path in served.asked)
    with pytest.raises(ValueError, match=r"^hf:me/fish is not on the hub, or is private: hf auth login$"):
        fetch("hf:me/fish")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody is there: what was fetched is used
    assert lookalike.load("hf:me/birds", "cpu").dim == 8
    with pytest.raises(OSError, match=r"^hf:me/fish is not in the cache, and the hub cannot be reached"):
        fetch("hf:me/fish")


@pytest.mark.parametrize("address", ["hf:birds", "hf:", "hf:a/b/c", "hf:../b@main x"])
def test_wrong_addresses(address: str) -> None:
    with pytest.raises(ValueError, match=r"^a model on the hub is called hf:owner/name or "):
        lookalike.load(address)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", None)
    with pytest.raises(ValueError, match=r"^hf:me/birds needs the package huggingface_hub: pip install"):
        fetch("hf:me/birds")
