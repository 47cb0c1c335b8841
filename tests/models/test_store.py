"""A model comes back from disk as it went, or not at all."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lookalike import pooling
from lookalike.models import Embedder, create_backbone, load_model, save_model, store
from lookalike.models.embedder import Head
from lookalike.models.store import read_model
from lookalike.models.weight_files import ShapesOnly

K_CENTRE = {"num_prototypes": 4, "init": "k-centre", "memory": 12}


def make(seed: int = 0, **settings) -> Embedder:  # type: ignore[no-untyped-def]
    torch.manual_seed(seed)
    return Embedder(create_backbone("resnet20"), **{"dim": 8, "pooling_settings": K_CENTRE, **settings})


def test_round_trip_in_the_middle_of_the_warm_up(tmp_path: Path) -> None:
    embedder = make()
    images = torch.randn(8, 3, 32, 32)
    embedder.train()(images)  # eight of twelve averages are stored, and batch norm has seen something
    save_model(embedder, tmp_path / "new" / "run")
    again = load_model(tmp_path / "new" / "run")
    assert not again.training
    assert again.settings() == embedder.settings()
    for (name, value), (other, read) in zip(embedder.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(value, read), name
    # Both go on alike: the next batch fills the memory and chooses the prototypes.
    assert not again.head.pooling.ready
    assert torch.equal(again.train()(images), embedder(images))
    assert again.head.pooling.ready
    assert torch.equal(again.head.pooling.prototypes, embedder.head.pooling.prototypes)


def test_two_files_and_no_pickle(tmp_path: Path) -> None:
    save_model(make(), tmp_path)
    save_model(make(1), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "model.safetensors"]
    assert json.loads((tmp_path / "model.json").read_text())["pooling"] == {"name": "gsp", "settings": K_CENTRE}


@pytest.mark.parametrize("fails_at", ["save_weights", "flush"])
def test_what_fails_half_way_leaves_the_old_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    save_model(make(0), tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(store, fails_at, fail)
    with pytest.raises(OSError, match="full"):
        save_model(make(1, dim=4), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.json", "model.safetensors"]
    kept = load_model(tmp_path).state_dict()
    assert all(torch.equal(value, kept[name]) for name, value in make(0).state_dict().items())


def test_settings_are_never_left_with_the_weights_of_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same shapes, other settings, and a crash between the two moves: the new model is complete."""
    save_model(make(0, normalise="l2"), tmp_path)
    replace = Path.replace

    def crash(self: Path, target: Path) -> Path:
        if target.name == "model.json":
            raise OSError("power cut")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", crash)
    with pytest.raises(OSError, match="power cut"):
        save_model(make(1, normalise="clip"), tmp_path)
    new = make(1, normalise="clip")
    loaded = load_model(tmp_path)
    assert loaded.settings() == new.settings()
    assert all(torch.equal(value, new.state_dict()[name]) for name, value in loaded.state_dict().items())


def damage(folder: Path, what: str) -> None:
    settings, weights = folder / "model.json", folder / "model.safetensors"
    values = json.loads(settings.read_text())
    if what == "no weights":
        weights.unlink()
    elif what == "cut weights":
        weights.write_bytes(weights.read_bytes()[:-100])
    elif what == "foreign weights":
        weights.write_bytes(b"\x80\x04 a pickle")
    elif what == "cut settings":
        settings.write_text(settings.read_text()[:-20])
    elif what == "foreign settings":
        settings.write_text("[1, 2]")
    elif what == "newer format":
        settings.write_text(json.dumps({**values, "format": 99}))
    elif what == "other shapes":
        settings.write_text(json.dumps({**values, "dim": 9}))
    elif what == "unknown backbone":
        settings.write_text(json.dumps({**values, "backbone": "resnet2O"}))
    elif what == "unknown pooling setting":
        settings.write_text(json.dumps({**values, "pooling": {"name": "gsp", "settings": {"kep": 1}}}))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no weights", "there is no model.safetensors"),
        ("cut weights", "cannot be read as weights"),
        ("foreign weights", "cannot be read as weights"),
        ("cut settings", "model.json is damaged"),
        ("foreign settings", "no settings of a model"),
        ("newer format", "has the format 99, this version reads 1"),
        ("other shapes", r"do not fit the settings.*of another shape"),
        ("unknown backbone", "no backbone is called"),
        ("unknown pooling setting", "kep"),
    ],
)
def test_what_cannot_be_loaded_gets_one_clear_error(tmp_path: Path, what: str, message: str) -> None:
    save_model(make(), tmp_path)
    damage(tmp_path, what)
    with pytest.raises(ValueError, match=message) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no model"):
        load_model(tmp_path / "nowhere")


HUGE = [
    ({"dim": 60_000}, "do not fit"),
    ({"dim": 10**9}, "1,000,000,000 is larger than 65,536"),
    ({"pooling": {"name": "gsp", "settings": {"num_prototypes": 60_000}}}, "do not fit"),
    ({"pooling": {"name": "netvlad", "settings": {"num_prototypes": 60_000}}}, "cannot be used"),
    ({"pooling": {"name": "gsp", "settings": {"num_prototypes": 10**12}}}, "is larger than 65,536"),
    ({"backbone": "vit_7b_patch16_dinov3"}, "do not fit"),
    ({"dim": [[1] * 70]}, "cannot be used"),
]


def test_settings_are_compared_with_the_weights_before_anything_is_built(tmp_path: Path) -> None:
    """In a process that may take 2 GB more than it has with everything imported."""
    save_model(make(), tmp_path)
    settings = json.loads((tmp_path / "model.json").read_text())
    for i, (change, _) in enumerate(HUGE):
        folder = tmp_path / str(i)
        folder.mkdir()
        (folder / "model.safetensors").hardlink_to(tmp_path / "model.safetensors")
        (folder / "model.json").write_text(json.dumps(settings | change))
    code = f"""
import resource
from pathlib import Path
from lookalike.models import load_model
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2 * 2**30,) * 2)
for i in range({len(HUGE)}):
    try:
        load_model(Path({str(tmp_path)!r}) / str(i))
    except ValueError as error:
        print(error)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr[-500:]
    for line, (_, message) in zip(result.stdout.splitlines(), HUGE, strict=True):
        assert message in line


def test_settings_that_nest_or_stretch_are_refused(tmp_path: Path) -> None:
    save_model(make(), tmp_path)
    original = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested deeper than 64"):
        load_model(tmp_path)
    for size in ({"size": 10**5}, {"size": 8, "resize": 10**4}):
        (tmp_path / "model.json").write_text(json.dumps(original | {"input": original["input"] | size}))
        with pytest.raises(ValueError, match="settings that cannot be used"):
            load_model(tmp_path)


@pytest.mark.parametrize("name", pooling.names())
def test_every_pooling_has_shapes_without_memory(name: str) -> None:
    real = Head(16, 16, name).state_dict()
    with ShapesOnly():
        shapes = Head(16, 16, name).state_dict()
    assert {key: value.shape for key, value in shapes.items()} == {key: value.shape for key, value in real.items()}


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_every_flipped_bit_is_noticed(tmp_path: Path, name: str) -> None:
    save_model(make(0), tmp_path)
    file = tmp_path / name
    good = file.read_bytes()
    rng = random.Random(0)
    header = int.from_bytes((tmp_path / "model.safetensors").read_bytes()[:8], "little") + 8
    for position in [*rng.choices(range(len(good)), k=60), *rng.choices(range(min(header, len(good))), k=60)]:
        content = bytearray(good)
        content[position] ^= 1 << rng.randrange(8)
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"damaged|cannot be read|cannot be used|holds no|has the format"):
            load_model(tmp_path)
    file.write_bytes(good)
    assert read_model(tmp_path).has_checksum


def test_models_without_a_checksum_are_read(tmp_path: Path) -> None:
    save_model(make(0), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    for metadata in (None, {"format": "pt"}):
        save_file(weights, tmp_path / "model.safetensors", metadata=metadata)
        assert not read_model(tmp_path).has_checksum
        load_model(tmp_path)


def test_unfinished_models_of_killed_processes_are_removed(tmp_path: Path) -> None:
    for name, age in ((".model-abcd_123", 700), (".model-young123", 0)):
        (tmp_path / name / "model").mkdir(parents=True)
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    save_model(make(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".model-young123", "model.json", "model.safetensors"]


def test_a_model_that_is_replaced_twice_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards the settings are as before, but the weights were those of the model in between."""
    models = []
    for dim in (4, 6):
        torch.manual_seed(dim)
        models.append(Embedder(create_backbone("resnet8-half", weights="none"), dim=dim, pooling="average"))
    save_model(models[0], tmp_path)
    original = store.read_weights
    readings = []

    def read_weights(path: Path) -> dict[str, torch.Tensor]:
        readings.append(path)
        if len(readings) > 1:
            return original(path)
        save_model(models[1], tmp_path)
        weights = original(path)
        save_model(models[0], tmp_path)
        return weights

    monkeypatch.setattr(store, "read_weights", read_weights)
    assert load_model(tmp_path).settings() == models[0].settings()
    assert len(readings) == 2


def test_settings_are_compared_with_the_header_before_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(make(0), tmp_path)
    settings = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps({**settings, "dim": 60_000}))
    monkeypatch.setattr(store, "read_weights", lambda _: pytest.fail("the weights were read"))
    with pytest.raises(ValueError, match="do not fit"):
        load_model(tmp_path)


def test_networks_that_compute_with_tables_need_no_memory_for_their_shapes() -> None:
    name = "vit_small_patch16_rope_mixed_224"
    with ShapesOnly():
        shapes = create_backbone(name, weights="none").state_dict()
    assert all(value.is_meta for value in shapes.values())
    built = create_backbone(name, weights="none").state_dict()
    assert {key: value.shape for key, value in shapes.items()} == {key: value.shape for key, value in built.items()}
