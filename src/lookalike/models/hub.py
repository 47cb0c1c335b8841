"""Download of models from the Hugging Face hub: ``lookalike.load("hf:owner/name")`` or ``"hf:owner/name@revision"``.

Only the files of a model folder are downloaded, into the hub's cache; none of them is a pickle. Without a connection
the cache is used. ``HF_ENDPOINT`` names another hub.
"""

import os
import re
from pathlib import Path

from lookalike.models.weight_files import first_line

PREFIX = "hf:"
FILES = ["model.json", "model.safetensors", "README.md"]
_WORD = r"(?!\.)(?:(?!\.\.)[\w.-]){1,96}"  # no . or .. : names become parts of paths in the cache
_ADDRESS = re.compile(rf"hf:(?P<name>{_WORD}/{_WORD})(@(?P<revision>{_WORD}(/{_WORD}){{0,3}}))?", re.ASCII)


def is_address(model: str | Path) -> bool:
    """Whether ``model`` names a model on the hub, not a folder."""
    return str(model).startswith(PREFIX)


def fetch(address: str) -> Path:
    """Download a model.

    Args:
        address: "hf:owner/name" or "hf:owner/name@revision".

    Returns:
        The folder with its files, in the hub's cache.

    Raises:
        ValueError: If the address is wrong, the model is not there, or ``huggingface_hub`` is not installed.
        OSError: If the model is not in the cache and the hub cannot be reached.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise ValueError(f"a model on the hub is called hf:owner/name or hf:owner/name@revision, got {address!r}")
    try:
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError:
        raise ValueError(f'{address} needs the package huggingface_hub: pip install "lookalike[export]"') from None
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        folder = snapshot_download(
            match["name"],
            revision=match["revision"],
            allow_patterns=FILES,
            endpoint=os.environ.get("HF_ENDPOINT"),
        )
    except GatedRepoError:
        raise ValueError(f"{address} is gated: request access on the hub, then run hf auth login") from None
    except RepositoryNotFoundError:
        raise ValueError(f"{address} is not on the hub, or is private: hf auth login") from None
    except RevisionNotFoundError:
        raise ValueError(f"{match['name']} has no revision {match['revision']!r} on the hub") from None
    except LocalEntryNotFoundError:
        raise OSError(f"{address} is not in the cache, and the hub cannot be reached: is there a connection?") from None
    except Exception as error:  # of the connection or of a proxy
        raise OSError(f"{address} could not be downloaded: {first_line(error)}") from error
    return Path(str(folder))
