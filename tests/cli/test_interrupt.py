"""Ctrl-C while the command still loads: exit code 130 and not a word, in processes of their own."""

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lookalike.cli.interrupt import exit_on_interrupt

# The command, interrupted when a module is asked for the first time: a moment that does not depend on the machine.
COMMAND = """
import os, signal, sys

moment = sys.argv.pop(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # who runs the tests in the background has it ignored

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from lookalike.cli import main
sys.exit(main())
"""


@pytest.mark.parametrize("moment", ["torch", "torch.nn", "lightning_fabric"])
def test_ctrl_c_while_modules_load(moment: str, tmp_path: Path) -> None:
    words = [sys.executable, "-c", COMMAND, moment, "train", "glyphs", "--out", "RUN"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
    assert not list(tmp_path.iterdir())


@pytest.fixture
def _default_handler() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_default_handler")
def test_the_handler_is_put_back() -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with exit_on_interrupt():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        with exit_on_interrupt():
            pass
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_who_ignores_it_keeps_ignoring_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with exit_on_interrupt():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_may_load_too() -> None:
    went_through = []

    def load() -> None:
        with exit_on_interrupt():
            went_through.append(True)

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert went_through == [True]
