"""Signals ask a run to stop, and are given back afterwards."""

import pickle
import signal
from threading import Thread

import pytest

from lookalike._util.signals import RunFailed, Stopped, StopRequest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_a_request(number: signal.Signals) -> None:
    with StopRequest().listening() as stop:
        stop.check()
        assert stop.requested == 0
        signal.raise_signal(number)
        assert stop.requested == number
        with pytest.raises(Stopped) as caught:
            stop.check()
    assert caught.value.signal_number == number
    with pytest.raises(Stopped):
        stop.check()  # it stays asked


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_ctrl_c_insists(first: signal.Signals) -> None:
    with StopRequest().listening() as stop:
        signal.raise_signal(first)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)  # but a batch system may ask twice
        assert stop.requested == signal.SIGTERM


def fail_while_listening() -> None:
    with StopRequest().listening():
        signal.raise_signal(signal.SIGTERM)
        raise MemoryError


def test_handlers_are_given_back() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(MemoryError):
            fail_while_listening()
        assert heard == []
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGINT) is interrupt
    finally:
        signal.signal(signal.SIGTERM, before)


def test_in_another_thread_signals_are_left_alone() -> None:
    seen: list[object] = []
    before = signal.getsignal(signal.SIGINT)

    def work() -> None:
        with StopRequest().listening() as stop:
            seen.append(signal.getsignal(signal.SIGINT))
            stop.requested = signal.SIGTERM
            with pytest.raises(Stopped):
                stop.check()
            seen.append("stopped")

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before, "stopped"]


def test_they_travel_between_processes() -> None:
    assert pickle.loads(pickle.dumps(Stopped(15))).signal_number == 15
    assert str(pickle.loads(pickle.dumps(RunFailed("the disk is full")))) == "the disk is full"
