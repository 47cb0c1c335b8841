"""``lookalike export RUN --out FILE_OR_FOLDER``: write a model for other programs."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Literal

from lookalike import data
from lookalike._util.files import require_writable
from lookalike._util.settings import setting
from lookalike.cli.arguments import JSON, REQUIRED, UsageError, parse
from lookalike.cli.evaluate import require_measurable
from lookalike.cli.interrupt import exit_on_interrupt
from lookalike.cli.loading import embed_pictures
from lookalike.cli.output import print_result, print_status, require_new_file
from lookalike.data.pictures import Pictures
from lookalike.training.evaluate import measure

DESCRIPTION = """Write a trained model for other programs. onnx: one file with backbone and pooling, for onnxruntime and
others. torch: a .pt2 file of torch.export. folder: model.json, model.safetensors and a model card; lookalike.load reads
it from a path or from the Hugging Face hub. The exported files take batches of any size, as float32 arrays; their
metadata describe the preprocessing."""
EXAMPLE = "lookalike export runs/mine --out mine.onnx"
SUFFIXES = {".onnx": "onnx", ".pt2": "torch", "": "folder"}


@dataclass
class ExportSettings:
    """Options of ``lookalike export``."""

    run: Path = setting(REQUIRED, "folder of a run, or hf:owner/name")
    out: Path = setting(REQUIRED, "file to write, .onnx or .pt2, or a folder")
    format: Literal["onnx", "torch", "folder"] | None = setting(None, "null: by the name of --out")
    details: bool = setting(False, "also output the weights and attributes of the pooling")
    int8: bool = setting(False, "store weights as 8-bit integers, and measure the loss of accuracy on --data")
    data: str | None = setting(None, "labelled pictures to measure --int8 on, as for lookalike evaluate")
    overwrite: bool = setting(False, "replace --out if it exists")
    workers: int | None = setting(None, "processes that read pictures; null: by the number of cores", least=0)
    device: str | None = setting(None, "where to measure: cpu, cuda, ...; null: a GPU if there is one")


def run(argv: list[str]) -> int:
    """Run ``lookalike export`` with the words after its name, and return the exit code."""
    settings, flags = parse(ExportSettings, argv, "export", DESCRIPTION, EXAMPLE, positional=["run"], flags=JSON)
    kind = _choose_format(settings, settings.out)
    with exit_on_interrupt():
        from lookalike import export
        from lookalike.export.onnx_file import check_onnx
        from lookalike.inference.model import load

    model = load(str(settings.run), settings.device)
    if kind == "onnx":
        check_onnx(model.embedder)
    if settings.details and not model.has_weights:
        raise UsageError("--details: the pooling of this model has no weights")
    report: dict[str, Any] = {"out": str(settings.out), "format": kind, "dim": model.dim}
    if settings.int8:
        assert settings.data is not None
        pictures = _load_pictures(settings.data)
        report["data"] = pictures.name
        report["pictures"] = len(pictures)
        report["before"] = _measure(model, pictures, settings.workers)
        export.quantise_weights(model.embedder)
        report["after"] = _measure(model, pictures, settings.workers)
    if kind == "folder":
        export.write_folder(model.embedder, settings.out, settings.run)
    else:
        writers: dict[str, Callable[..., float | None]] = {"onnx": export.write_onnx, "torch": export.write_torch}
        print_status("tracing, writing and checking the file: about half a minute")
        write = writers[kind]
        report["difference"] = write(model.embedder, settings.out, details=settings.details, int8=settings.int8)
    report["bytes"] = _size_on_disk(settings.out)
    if flags:
        print(json.dumps(report))
    else:
        print_result(_summarise(report, model.spec.size))
    return 0


def _choose_format(settings: ExportSettings, out: Path) -> str:
    """The format; raises if the options contradict each other or ``out`` cannot be written."""
    if settings.format is None and out.suffix not in SUFFIXES:
        raise UsageError(f"--out must end in .onnx or .pt2, or add --format folder, got {out.name}")
    kind = settings.format or SUFFIXES[out.suffix]
    suffix = {"onnx": ".onnx", "torch": ".pt2"}.get(kind)
    if suffix is not None and out.suffix != suffix:
        raise UsageError(f"--out must end in {suffix} for --format {kind}, got {out.name}")
    if settings.int8 and kind == "folder":
        raise UsageError("--int8 is for the formats onnx and torch; a folder keeps the original weights")
    if settings.int8 and settings.data is None:
        raise UsageError("--int8 needs --data DATA, to measure the loss of accuracy")
    if settings.data is not None and not settings.int8:
        raise UsageError("--data is only used with --int8")
    if settings.details and kind == "folder":
        raise UsageError("--details is for the formats onnx and torch; a model in a folder can always explain")
    if kind != "folder":
        require_new_file(out, "--out", settings.overwrite)
        return kind
    require_writable(out)
    if out.is_file():
        raise UsageError(f"--out must be a folder for --format folder, got the file {out}")
    if out.exists() and not settings.overwrite:
        raise UsageError(f"{out} exists: choose another --out or add --overwrite")
    return kind


def _load_pictures(source: str) -> Pictures:
    pictures = data.load(source, progress=True)
    if pictures.splits is not None and "test" in pictures.splits:
        pictures = pictures.split("test")
    require_measurable(pictures, pictures.name)
    return pictures


def _measure(model: Any, pictures: Pictures, workers: int | None) -> dict[str, float]:
    vectors = embed_pictures(model, pictures, workers)
    metrics = measure(vectors, pictures, distance=model.distance)
    return {"MAP@R": metrics["MAP@R"], "P@1": metrics["P@1"]}


def _size_on_disk(out: Path) -> int:
    if out.is_file():
        return out.stat().st_size
    return sum((out / name).stat().st_size for name in ("model.json", "model.safetensors", "README.md"))


def _summarise(report: dict[str, Any], size: int) -> str:
    out, kind = report["out"], report["format"]
    lines = [f"{out}: {report['bytes'] / 1e6:.1f} MB, vectors of size {report['dim']}"]
    if report.get("difference") is not None:
        runtime = {"onnx": "onnxruntime", "torch": "torch.export"}[kind]
        reference = "the model"
        if "before" in report:
            reference = "the model with 8-bit weights"
        lines.append(f"checked: {runtime} and {reference} differ by at most {report['difference']:.0e}")
    elif kind == "onnx":
        lines.append("not checked because onnxruntime is not installed: pip install onnxruntime")
    if "before" in report:
        lines.append(f"on {report['data']}, {report['pictures']:,} pictures, in percent:")
        for name, before in report["before"].items():
            after = report["after"][name]
            change = f"{100 * before:6.2f} -> {100 * after:6.2f} with int8 ({100 * (after - before):+.2f})"
            lines.append(f"  {name:<6} {change}")
    lines.append("to run it:")
    if kind == "onnx":
        lines += [
            f"  session = onnxruntime.InferenceSession({out!r})",
            f'  vectors = session.run(["vectors"], {{"images": numbers}})[0]  # float32 (n, 3, {size}, {size})',
            'preprocessing: session.get_modelmeta().custom_metadata_map["lookalike"], key "preprocessing"',
        ]
    elif kind == "torch":
        lines += [
            f"  model = torch.export.load({out!r}).module()",
            f"  vectors = model(numbers)[0]  # numbers: float32 (n, 3, {size}, {size})",
            "preprocessing: the file lookalike.json in the archive; pass extra_files to load",
        ]
    else:
        lines += [
            f"  lookalike.load({out!r}).embed(pictures)",
            f"to share it: hf upload OWNER/NAME {quote(out)}, then lookalike.load('hf:OWNER/NAME')",
        ]
    return "\n".join(lines)
