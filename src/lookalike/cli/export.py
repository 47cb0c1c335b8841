"""``lookalike export RUN --out FILE_OR_FOLDER``"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from lookalike import data
from lookalike._util.files import require_writable
from lookalike._util.progress import Display
from lookalike._util.settings import setting
from lookalike._util.signals import StopRequest
from lookalike.cli.arguments import JSON, UsageError, parse
from lookalike.cli.interrupt import exit_on_interrupt
from lookalike.data.pictures import BrokenData, Pictures
from lookalike.data.splits import lacking_role, measurable_classes
from lookalike.training.evaluation import measure

DESCRIPTION = """Write a trained model for other programs or other people. onnx: one file, pooling included, for
onnxruntime and others; torch: a .pt2 of torch.export; folder: model.json, model.safetensors and a model card, which
lookalike.load takes from a path or from the Hugging Face hub. The files take any number of pictures at once, as
numbers; how pictures become these numbers is recorded in them."""
EXAMPLE = "lookalike export runs/mine --out mine.onnx"
SUFFIXES = {".onnx": "onnx", ".pt2": "torch", "": "folder"}


@dataclass
class ExportSettings:
    run: Path | None = setting(None, "folder of a run, or hf:owner/name")
    out: Path | None = setting(None, "file to write, .onnx or .pt2, or a folder")
    format: Literal["onnx", "torch", "folder"] | None = setting(None, "null: by the name of --out")
    details: bool = setting(False, "let the weights and attributes of the pooling come out of the file, too")
    int8: bool = setting(False, "store the weights in one byte each; what that costs is measured on --data")
    data: str | None = setting(None, "labelled pictures to measure --int8 on, as evaluate takes them")
    overwrite: bool = setting(False, "replace --out if it exists")
    workers: int | None = setting(None, "processes that read pictures; null: by the number of cores")
    device: str | None = setting(None, "where to measure: cpu, cuda, ...; null: a GPU if there is one")


def run(argv: list[str]) -> int:
    settings, flags = parse(
        ExportSettings,
        argv,
        prog="lookalike export",
        description=DESCRIPTION,
        example=EXAMPLE,
        positional=["run"],
        flags=JSON,
    )
    if settings.run is None or settings.out is None:
        raise UsageError("say which model and where to: lookalike export RUN --out FILE_OR_FOLDER")
    kind = _checked(settings, settings.out)
    with exit_on_interrupt():
        from lookalike import export
        from lookalike.export.onnx_file import check_onnx
        from lookalike.inference.model import load

    model = load(str(settings.run), settings.device)
    if kind == "onnx":
        check_onnx(model.embedder)
    if settings.details and not model.has_weights:
        raise UsageError("--details: the pooling of this model does not weigh places")
    report: dict[str, Any] = {"out": str(settings.out), "format": kind, "dim": model.dim}
    if settings.int8:
        assert settings.data is not None
        pictures = _pictures(settings.data)
        report["data"], report["pictures"] = pictures.name, len(pictures)
        report["before"] = _figures(model, pictures, settings.workers)
        export.quantise_weights(model.embedder)
        report["after"] = _figures(model, pictures, settings.workers)
    if kind == "folder":
        export.write_folder(model.embedder, settings.out, settings.run)
    else:
        write = export.write_onnx if kind == "onnx" else export.write_torch
        print("tracing, writing and comparing with the model: half a minute or so", file=sys.stderr, flush=True)
        report["difference"] = write(model.embedder, settings.out, details=settings.details, int8=settings.int8)
    report["bytes"] = _bytes(settings.out)
    print(json.dumps(report) if flags else _text(report, model.spec.size))
    return 0


def _checked(settings: ExportSettings, out: Path) -> str:
    """The format, when all that can be known to be wrong has been refused."""
    if settings.format is None and out.suffix not in SUFFIXES:
        raise UsageError(f"--out must end in .onnx or .pt2, or say --format folder, got {out.name}")
    kind = settings.format or SUFFIXES[out.suffix]
    right = {"onnx": ".onnx", "torch": ".pt2"}.get(kind)
    if right is not None and out.suffix != right:
        raise UsageError(f"--out must end in {right} for --format {kind}, got {out.name}")
    if settings.int8 and kind == "folder":
        raise UsageError("--int8 goes with onnx and torch: a folder holds the weights as they are")
    if settings.int8 and settings.data is None:
        raise UsageError("--int8 needs --data DATA: what it costs in MAP@R is to be measured")
    if settings.data is not None and not settings.int8:
        raise UsageError("--data goes with --int8")
    if settings.details and kind == "folder":
        raise UsageError("--details goes with onnx and torch: a folder is loaded whole, and explains")
    require_writable(out)
    if out.is_dir() != (kind == "folder") and out.exists():
        raise UsageError(f"{out} is {'a folder' if out.is_dir() else 'a file'}: --format {kind} writes the other")
    if out.exists() and not settings.overwrite:
        raise UsageError(f"{out} exists: choose another --out, or --overwrite")
    return kind


def _pictures(source: str) -> Pictures:
    pictures = data.load(source, progress=True)
    if pictures.splits is not None and "test" in pictures.splits:
        pictures = pictures.split("test")
    if measurable_classes(pictures) == 0:
        fault = lacking_role(pictures) or "no query has another picture of its class, so nothing can be measured"
        raise BrokenData(f"{pictures.name}: {fault}")
    return pictures


def _figures(model: Any, pictures: Pictures, workers: int | None) -> dict[str, float]:
    with StopRequest().listening() as stop, Display(stop).bar(len(pictures), "embedding") as tick:
        vectors = model.embed_table(pictures, workers=workers, tick=tick)
    figures = measure(vectors, pictures, distance=model.distance)
    return {name: figures[name] for name in ("MAP@R", "P@1")}


def _bytes(out: Path) -> int:
    files = [out / name for name in ("model.json", "model.safetensors", "README.md")] if out.is_dir() else [out]
    return sum(file.stat().st_size for file in files)


def _text(report: dict[str, Any], size: int) -> str:
    out, kind = report["out"], report["format"]
    lines = [f"{out}: {report['bytes'] / 1e6:.1f} MB, vectors of size {report['dim']}"]
    if report.get("difference") is not None:
        runner = "onnxruntime" if kind == "onnx" else "torch.export"
        whose = "the results of the model with these weights" if "before" in report else "the model's results"
        lines.append(f"checked: {runner} gives {whose} to within {report['difference']:.0e}")
    elif kind == "onnx":
        lines.append("not checked, for onnxruntime is not installed: pip install onnxruntime")
    if "before" in report:
        lines.append(f"on {report['data']}, {report['pictures']:,} pictures, in percent:")
        for name, before in report["before"].items():
            after = report["after"][name]
            lines.append(
                f"  {name:<6} {100 * before:6.2f} -> {100 * after:6.2f} with int8 ({100 * (after - before):+.2f})"
            )
    lines.append("to run it:")
    if kind == "onnx":
        lines += [
            f"  session = onnxruntime.InferenceSession({out!r})",
            f'  vectors = session.run(["vectors"], {{"images": numbers}})[0]  # float32 (n, 3, {size}, {size})',
            'how pictures become numbers: session.get_modelmeta().custom_metadata_map["lookalike"], "preprocessing"',
        ]
    elif kind == "torch":
        lines += [
            f"  model = torch.export.load({out!r}).module()",
            f"  vectors = model(numbers)[0]  # numbers: float32 (n, 3, {size}, {size})",
            "how pictures become numbers: lookalike.json in the archive, given extra_files to load",
        ]
    else:
        lines += [
            f"  lookalike.load({out!r}).embed(pictures)",
            f"to share it: hf upload OWNER/NAME {quote(out)}, then lookalike.load('hf:OWNER/NAME')",
        ]
    return "\n".join(lines)
