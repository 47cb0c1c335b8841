"""``lookalike weights``, ``weights check FILE`` and ``weights convert FILE --out FILE``: pretrained weights."""

import json
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from lookalike._util.settings import setting
from lookalike._util.suggestions import did_you_mean
from lookalike.cli.arguments import JSON, UsageError, parse
from lookalike.cli.output import print_result, require_new_file

if TYPE_CHECKING:
    from lookalike.models.backbones import Match
    from lookalike.models.weight_formats import SourceWeights

DESCRIPTION = """Without arguments: list known files of pretrained weights, by backbone, and where to get them. With
check FILE: say which backbone a file fits, or what is missing, and whether its checksum is in the list. With convert
FILE --out OUT.safetensors: rename its tensors for the backbone and leave out the classifier; OUT keeps the checksum of
FILE. FILE is .safetensors, a state dict of torch (read without unpickling objects), .h5 or .npz of Keras, or the
model.json of TensorFlow.js. A file that fits is used by lookalike train --backbone NAME --weights FILE, and by
benchmark or tune --set "backbone=NAME, weights=FILE"."""
EXAMPLE = "lookalike weights convert ResNet50/model.json --backbone resnet50-keras --out resnet50-keras.safetensors"
ACTIONS = ("check", "convert")
FLAGS = {**JSON, "--overwrite": "replace --out if it exists"}


@dataclass
class WeightsSettings:
    """Options of ``lookalike weights``."""

    action: str | None = setting(None, "check or convert, or nothing for the list")
    file: Path | None = setting(None, "file of weights; a folder with the model.json of TensorFlow.js works as well")
    backbone: str | None = setting(None, "name of the backbone, also one of timm's; null: found by the tensors")
    out: Path | None = setting(None, "file for the converted weights, .safetensors")


def run(argv: list[str]) -> int:
    """Run ``lookalike weights`` with the words after its name, and return the exit code."""
    settings, flags = parse(
        WeightsSettings, argv, "weights", DESCRIPTION, EXAMPLE, positional=["action", "file"], flags=FLAGS
    )
    as_json = "--json" in flags
    if settings.action is None:
        _print_list(settings.backbone, as_json=as_json)
        return 0
    if settings.action not in ACTIONS:
        raise UsageError(f"there is no 'weights {settings.action}'{did_you_mean(settings.action, ACTIONS)}")
    if settings.file is None:
        raise UsageError(f"missing FILE (the weights to {settings.action})")
    if settings.action == "check":
        return _check(settings.file.expanduser(), settings.backbone, as_json=as_json)
    if settings.out is None or settings.out.suffix != ".safetensors":
        raise UsageError(f"--out must name a file that ends in .safetensors, got {settings.out or 'nothing'}")
    require_new_file(settings.out, "--out", "--overwrite" in flags)
    return _convert(settings.file.expanduser(), settings.backbone, settings.out, as_json=as_json)


def _print_list(backbone: str | None, *, as_json: bool) -> None:
    from lookalike.models.known_weights import FILES

    files = [known for known in FILES if backbone in (None, known.backbone)]
    if as_json:
        print(json.dumps([known._asdict() for known in files], indent=2))
        return
    if not files:
        print_result(f"no file of weights for {backbone} is listed here; weights=timm downloads those of timm's models")
    for known in files:
        print_result(f"{known.backbone}: {known.file}, {known.megabytes:g} MB")
        print_result(f"    from {known.source}")
        if known.sha256:
            print_result(f"    sha256 {known.sha256}{'...' if len(known.sha256) < 64 else ''}")
        if known.md5:
            print_result(f"    md5 {known.md5}")
        if known.note:
            print_result(f"    {known.note}")


def _check(path: Path, backbone: str | None, *, as_json: bool) -> int:
    from lookalike.models.backbones import explain_misfit
    from lookalike.models.weight_origin import hash_files, identify

    source, best = _read(path, backbone)
    fit = best.fit
    sha256 = hash_files(path).sha256
    known = identify(path)
    if as_json:
        report: dict[str, Any] = {
            "file": str(path),
            "sha256": sha256,
            "known_as": known.file if known else None,
            "names_of": source.origin or None,
            "tensors": len(source.state),
            "backbone": best.backbone,
            "fits": fit.is_complete,
            "missing": fit.missing,
            "unexpected": fit.unknown,
            "reshaped": fit.reshaped,
            "problem": None if fit.is_complete else explain_misfit(best, source),
        }
        print(json.dumps(report, indent=2))
        return int(not fit.is_complete)
    if not fit.is_complete:
        print_result(f"{path}: {explain_misfit(best, source)}")
        return 1
    print_result(f"{path} fits {best.backbone}: {fit.matching} of its {len(source.state)} tensors are used")
    if source.origin:
        print_result(f"names: {source.origin}")
    if known is not None:
        print_result(f"known file: {known.file}, {known.note}")
    else:
        print_result(f"sha256 {sha256}: no known file, so reports mark published numbers beside its results")
    print_result(f"use: lookalike train DATA --out RUN --backbone {best.backbone} --weights {quote(str(path))}")
    print_result(f'     lookalike benchmark ... --set "backbone={best.backbone}, weights={path}"')
    return 0


def _convert(path: Path, backbone: str | None, out: Path, *, as_json: bool) -> int:
    from safetensors.torch import save

    from lookalike._util.files import replacing
    from lookalike.models.backbones import explain_misfit, weights_for
    from lookalike.models.weight_files import checked_metadata
    from lookalike.models.weight_formats import metadata_of
    from lookalike.models.weight_origin import MD5, SHA256, hash_files, source_hashes

    source, best = _read(path, backbone)
    if not best.fit.is_complete:
        raise ValueError(f"{path}: {explain_misfit(best, source)}")
    name = best.backbone
    state = weights_for(name, source)
    hashes = source_hashes(path)
    texts = {**metadata_of(name, source), SHA256: hashes.sha256, MD5: hashes.md5}
    with replacing(out) as unfinished:
        unfinished.write_bytes(save(state, checked_metadata(state, texts)))
    if as_json:
        print(json.dumps({"file": str(out), "backbone": name, "tensors": len(state), "sha256": hash_files(out).sha256}))
    else:
        print_result(f"wrote {out}: {len(state)} tensors of {name}")
    return 0


def _read(path: Path, backbone: str | None) -> "tuple[SourceWeights, Match]":
    """Read weights, and compare them with the backbone or with all common ones."""
    from lookalike.models import is_backbone
    from lookalike.models.backbones import match_weights
    from lookalike.models.weight_formats import read_source

    candidates = []
    if backbone is not None:
        if not is_backbone(backbone):
            raise UsageError(f"no backbone is called {backbone!r}; see lookalike weights, or timm.list_models()")
        candidates = [backbone]
    source = read_source(path)
    return source, match_weights(source, candidates)[0]
