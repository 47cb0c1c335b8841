"""Known files of weights are found again by their checksums, also after conversion."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lookalike.cli import main
from lookalike.models import known_weights
from lookalike.models.cifar_resnet import CifarResNet
from lookalike.models.known_weights import FILES, KnownWeights, find_by_hash
from lookalike.models.weight_origin import SHA256, hash_files, identify


def save_cifar(path: Path) -> None:
    """A classifier with the names of akamaster's files."""
    torch.manual_seed(0)
    state = {}
    for name, value in CifarResNet().state_dict().items():
        layer, _, rest = name.partition(".")
        layer = {"stem": "conv1", "stem_norm": "bn1"}.get(layer, layer.replace("stage", "layer"))
        state[f"{layer}.{rest.replace('norm', 'bn')}"] = value
    state |= {"linear.weight": torch.zeros(10, 64), "linear.bias": torch.zeros(10)}
    torch.save(state, path)


def make_known(monkeypatch: pytest.MonkeyPatch, path: Path, **hashes: str) -> KnownWeights:
    known = KnownWeights("resnet20", path.name, 1.0, "somewhere", **hashes)
    monkeypatch.setattr(known_weights, "FILES", (*FILES, known))
    return known


def convert(source: Path, out: Path) -> None:
    assert main(["weights", "convert", str(source), "--backbone", "resnet20", "--out", str(out)]) == 0


def test_a_file_and_what_was_converted_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, first, second = tmp_path / "known.th", tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_cifar(source)
    convert(source, first)
    convert(first, second)
    assert identify(source) is identify(first) is identify(second) is None
    known = make_known(monkeypatch, source, sha256=hashlib.sha256(source.read_bytes()).hexdigest()[:8])
    assert identify(source) == identify(first) == identify(second) == known
    assert hash_files(first).sha256 == hashlib.sha256(first.read_bytes()).hexdigest()


def test_other_tensors_in_a_converted_file_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, converted, changed = tmp_path / "known.th", tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    save_cifar(source)
    convert(source, converted)
    make_known(monkeypatch, source, sha256=hashlib.sha256(source.read_bytes()).hexdigest())
    state = load_file(converted)
    state["stem.weight"] = state["stem.weight"] + 1
    header = json.loads(converted.read_bytes()[8:].split(b"}}")[0] + b"}}")["__metadata__"]
    save_file(state, changed, metadata=header)
    assert SHA256 in header
    assert identify(converted) is not None
    assert identify(changed) is None
    del header["blake2b"]
    save_file(state, changed, metadata=header)
    assert identify(changed) is None


def test_shards_of_tensorflow_js_are_hashed_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "ResNet50"
    folder.mkdir()
    manifest = {"weightsManifest": [{"paths": ["b.bin", "a.bin"], "weights": []}]}
    (folder / "model.json").write_text(json.dumps(manifest))
    (folder / "a.bin").write_bytes(b"second")
    (folder / "b.bin").write_bytes(b"first")
    content = (folder / "model.json").read_bytes() + b"first" + b"second"
    assert hash_files(folder).sha256 == hashlib.sha256(content).hexdigest()
    known = make_known(monkeypatch, folder, md5=hashlib.md5(content).hexdigest())
    assert identify(folder) == identify(folder / "model.json") == known
    (folder / "model.json").write_text('{"weightsManifest": [{"weights": []}]}')
    with pytest.raises(ValueError, match=r"model\.json cannot be read as weights"):
        identify(folder)


def test_hashes_in_the_list_are_found() -> None:
    keras = find_by_hash("0" * 64, "4d473c1dd8becc155b73f8504c6f6626")
    assert keras is not None
    assert keras.backbone == "resnet50-keras"
    assert find_by_hash("0" * 64, "0" * 32) is None
    for known in FILES:
        if known.sha256:
            assert find_by_hash(known.sha256.ljust(64, "0")) == known
    assert {known.trained_on for known in FILES} == {"ImageNet", "CIFAR-10", "CIFAR-100"}
