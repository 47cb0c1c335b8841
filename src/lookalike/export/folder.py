"""A model as a folder for other people: model.json, model.safetensors and README.md, its card.

``lookalike.load`` takes the folder, and the hub as well once its files are there (``hf upload owner/name FOLDER``).
"""

from pathlib import Path
from tempfile import TemporaryDirectory

from lookalike._util.files import write_text
from lookalike.export.card import model_card
from lookalike.models import Embedder, save_model

CARD = "README.md"


def write_folder(embedder: Embedder, folder: Path, run: Path | None = None) -> None:
    """Write the folder, whole or not at all; in one that is there, only these three files are replaced."""
    card = model_card(embedder, folder.resolve().name, run)
    if folder.exists():
        save_model(embedder, folder)
        write_text(folder / CARD, card)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        unfinished = Path(temporary) / folder.name
        save_model(embedder, unfinished)
        write_text(unfinished / CARD, card)
        unfinished.rename(folder)
