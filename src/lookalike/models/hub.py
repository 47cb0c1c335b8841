"""Models on the Hugging Face hub: ``lookalike.load("hf:owner/name")``, or ``"hf:owner/name@revision"``.

Only the files of a model folder are fetched, into the hub's cache, and none of them is a pickle. What is in the cache
is used when there is no connection. ``HF_ENDPOINT`` names another hub.
"""

import os
import re
from pathlib import Path

PREFIX = "hf:"
FILES = ["model.json", "model.safetensors", "README.md"]
_ADDRESS = re.compile(r"hf:(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>[\w./-]+))?")


def is_address(model: str | Path) -> bool:
    return str(model).startswith(PREFIX)


def fetch(address: str) -> Path:
    """The folder with the files of the model at that address."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
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
            found["name"],
            revision=found["revision"],
            allow_patterns=FILES,
            endpoint=os.environ.get("HF_ENDPOINT"),
        )
    except GatedRepoError:
        raise ValueError(f"{address} asks for permission: see its page on the hub, then hf auth login") from None
    except RepositoryNotFoundError:
        raise ValueError(f"{address} is not on the hub, or is private: hf auth login") from None
    except RevisionNotFoundError:
        raise ValueError(f"{found['name']} has no revision {found['revision']!r} on the hub") from None
    except LocalEntryNotFoundError:
        raise OSError(f"{address} is not in the cache, and the hub cannot be reached: is there a connection?") from None
    except Exception as error:  # of the connection, of whatever lies between
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise OSError(f"{address} could not be fetched: {reason}") from error
    return Path(str(folder))
