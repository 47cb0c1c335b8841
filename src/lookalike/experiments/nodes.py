"""What the nodes of a cluster must agree on before trainings are distributed."""

from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lookalike._util.hashing import digest
from lookalike.experiments.results import RESULTS_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lookalike.data.pictures import Pictures

PROBED = 16  # pictures of each data set that every node must see


class Probe(NamedTuple):
    """What a node looks at.

    Attributes:
        token: A file in the results folder.
        samples: Some pictures of every data set.
    """

    token: Path
    samples: list["Pictures"]


@contextmanager
def probe(folder: Path, parts: Mapping[tuple[str, int], "Pictures"]) -> "Iterator[Probe]":
    """Make a probe of a results folder and of the pictures by data and fold; its file exists inside of ``with``."""
    samples = {}
    for (data, _), pictures in parts.items():
        positions = np.linspace(0, len(pictures) - 1, min(PROBED, len(pictures))).astype(int)
        samples[data] = pictures.take(positions)
    token = folder / f".probe-{token_hex(8)}"
    token.touch()
    try:
        yield Probe(token, list(samples.values()))
    finally:
        token.unlink(missing_ok=True)


def inspect_node(argument: Probe) -> dict[str, str]:
    """Say what this node finds, for ``Executor.check_nodes``."""
    token, samples = argument
    folder = "shared" if token.exists() else f"{token.parent} is not this one"
    findings = {"the version of results": str(RESULTS_VERSION), "the results folder": folder}
    for pictures in samples:
        try:
            keys = [pictures.key(i) for i in range(len(pictures))]
        except (OSError, ValueError) as error:
            keys = [str(error)]
        findings[f"the pictures of {pictures.name}"] = keys[0] if len(keys) == 1 else digest(*keys)
    return findings
