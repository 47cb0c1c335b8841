"""``lookalike.verify``: checks everything that is stored in a run or an index."""

from pathlib import Path

from lookalike._util.checksums import FILE, Finding, check_listed_files, hash_content, read_checksums
from lookalike.index.storage import ABOUT
from lookalike.index.verify import check_model, verify_index
from lookalike.models.store import SETTINGS, WEIGHTS
from lookalike.objectives.libc import MESSAGES, load_messages


def verify(path: str | Path, store: str | None = None) -> list[Finding]:
    """Check everything that is stored in a run or an index.

    Args:
        path: The folder of a run or of an index.
        store: Address of a Milvus server, as for ``lookalike.index.open``.

    Returns:
        What was found, for each part.

    Raises:
        ValueError: If the folder is neither.

    Examples:
        >>> lookalike.verify("runs/birds")[0]  # doctest: +SKIP
        Finding(part='data.json', status='ok', detail='')
    """
    path = Path(path)
    if (path / ABOUT).exists():
        return verify_index(path, store)
    if not any((path / name).exists() for name in (SETTINGS, WEIGHTS, "settings.yaml")):
        raise ValueError(f"{path} is neither a run nor an index")
    findings = check_listed_files(path)
    if (path / SETTINGS).exists() or (path / WEIGHTS).exists():
        findings.append(check_model(path))
    if (path / MESSAGES).exists():
        findings.append(_check_messages(path))
    findings += _check_states(path / "state")
    for file in sorted(path.glob("events*")):
        findings.append(_check_events(file))
    checked = {finding.part for finding in findings} | {FILE, SETTINGS, WEIGHTS}
    for file in sorted(path.iterdir()):
        if file.is_file() and file.stat().st_size > 0 and file.name not in checked:
            findings.append(Finding(file.name, "no checksum", "an earlier version or another program wrote it"))
    return findings


def _check_messages(path: Path) -> Finding:
    try:
        load_messages(path)
    except ValueError as error:
        return Finding(MESSAGES, "damaged", str(error))
    return Finding(MESSAGES, "ok")


def _check_states(folder: Path) -> list[Finding]:
    accepted = read_checksums(folder / FILE)
    findings = []
    if accepted == []:
        findings.append(Finding(f"state/{FILE}", "damaged", "delete it if you trust the states"))
    for name in ("last.pt", "previous.pt"):
        if not (folder / name).exists():
            continue
        if accepted is None:
            findings.append(Finding(f"state/{name}", "no checksum", "an earlier version wrote it"))
        elif hash_content(folder / name) in accepted:
            findings.append(Finding(f"state/{name}", "ok"))
        else:
            detail = "its checksum differs: --resume continues from the other state, or restore a copy"
            findings.append(Finding(f"state/{name}", "damaged", detail))
    return findings


def _check_events(file: Path) -> Finding:
    """TensorBoard writes a CRC of every record."""
    from tensorboard.compat.tensorflow_stub import errors
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import PyRecordReader_New

    reader = PyRecordReader_New(str(file))
    try:
        while True:
            reader.GetNext()
    except errors.OutOfRangeError:
        return Finding(file.name, "ok")
    except errors.DataLossError as error:
        return Finding(file.name, "damaged", f"{error}. TensorBoard shows what comes before; metrics.csv has it all")
