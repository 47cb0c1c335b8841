"""Where Optuna stores a study: a journal file, or a database."""

import os
from pathlib import Path

from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock, JournalFileSymlinkLock

from lookalike._util.hashing import digest


def open_storage(url: str | None, journal: Path) -> BaseStorage:
    """Open a database by its SQLAlchemy URL, or else the journal, which several machines may share through NFS.

    Raises:
        ValueError: the database cannot be opened.
    """
    if url is None:
        return _open_journal(journal)
    try:
        return RDBStorage(url)
    except ImportError as error:
        raise ValueError(f"--storage {_without_password(url)} needs a driver that is not installed: {error}") from None
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"--storage {_without_password(url)} cannot be opened: {reason}") from None


def repair_journal(journal: Path) -> None:
    """Cut off a last line that a full disk or a power cut left unfinished; Optuna could not read the file."""
    with journal.open("r+b") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)


def url_digest(url: str | None) -> str | None:
    """Identifies a storage without revealing the password in its URL."""
    return None if url is None else digest(url)


def _open_journal(journal: Path) -> BaseStorage:
    journal.parent.mkdir(parents=True, exist_ok=True)
    lock_class = JournalFileOpenLock if os.name == "nt" else JournalFileSymlinkLock
    lock = lock_class(str(journal))
    backend = JournalFileBackend(str(journal), lock_obj=lock)
    lock.acquire()
    try:
        repair_journal(journal)
    finally:
        lock.release()
    return JournalStorage(backend)


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if "@" not in rest:
        return url
    return f"{scheme}{separator}...@{rest.rpartition('@')[2]}"
