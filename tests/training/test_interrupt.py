"""Ctrl-C that comes while JAX loads is not lost, also where Python drops the exception."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from configs import interrupt
from training.run_directory.run_lock import stop_signals

CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAM = """
import os, signal, sys, time
from configs import cli

def dropped():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
    except KeyboardInterrupt:
        pass  # as Python does with what a callback of the garbage collector raises

def failing():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
    except KeyboardInterrupt:
        raise ImportError("it could not be loaded") from None

def slowly_cleaned():
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
    finally:
        time.sleep(2.5)
        print("cleaned", flush=True)

def work(argv):
    globals()[argv[0]]()
    end = time.monotonic() + 6
    while time.monotonic() < end:
        time.sleep(0.05)

cli.main(work)
"""


def ran(case: str, program: str = PROGRAM) -> tuple[int, str, float]:
    program = f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{program}"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program, case], cwd=CHECKOUT, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr, time.monotonic() - began


@pytest.mark.parametrize("case", ["dropped", "failing"])
def test_it_is_raised_again_until_it_is_answered(case) -> None:
    assert ran(case)[:2] == (130, "interrupted\n")


def test_as_python_has_it_it_is_lost() -> None:
    plain = PROGRAM.replace("cli.main(work)", "work(sys.argv[1:])")
    assert ran("dropped", plain)[0] == 0


def test_what_is_being_answered_is_not_disturbed() -> None:
    assert ran("slowly_cleaned")[:2] == (130, "cleaned\ninterrupted\n")


def test_one_that_came_before_training_stops_it() -> None:
    with interrupt.raising(signal.SIGINT):
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        assert interrupt.pending() == [signal.SIGINT]
        with stop_signals() as caught:
            assert caught == [signal.SIGINT] and not interrupt.pending()
        with stop_signals() as caught:
            assert caught == []
