"""Whether a process that gives no answer works, by what the system says of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from runtime.embedded.standing_still import MOST_LOOKS, STILL_LOOKS, Looks, look

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody can tell, and it is left alone")
COMPUTES = "print(flush=True)\nwhile True: pass"
WAITS = "print(flush=True)\nimport time\ntime.sleep(600)"


@contextmanager
def running(program: str) -> Iterator[int]:
    """The number of a process that has begun."""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield process.pid
        finally:
            process.kill()


def looked(looks: Looks, count: int) -> list[str]:
    return [why for _ in range(count) if (why := looks.again())]


def test_one_that_was_stopped_is_given_up_after_so_many_looks() -> None:
    with running(COMPUTES) as pid:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        looks = Looks(pid)
        assert looked(looks, STILL_LOOKS) == []
        assert "did nothing" in looks.again()


def test_one_that_waits_for_nothing_that_comes_is_given_up() -> None:
    with running(WAITS) as pid:
        while look(pid).may_work:  # on its way into its sleep
            pass
        assert "did nothing" in looked(Looks(pid), 4 * STILL_LOOKS)[0]


def test_one_that_computes_is_given_up_only_after_very_many_looks() -> None:
    with running(COMPUTES) as pid:
        looks = Looks(pid)
        assert looked(looks, MOST_LOOKS) == []
        assert "did nothing" not in looks.again()


def test_what_is_stopped_and_goes_on_is_looked_at_from_the_beginning() -> None:
    with running(COMPUTES) as pid:
        looks = Looks(pid)
        for _ in range(3):
            os.kill(pid, signal.SIGSTOP)
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
            assert looked(looks, STILL_LOOKS - 1) == []
            os.kill(pid, signal.SIGCONT)
            while not look(pid).may_work:
                pass
            assert looks.again() == ""


def test_of_one_that_is_not_there_nobody_can_tell() -> None:
    with running(WAITS) as pid:
        pass
    assert looked(Looks(pid), MOST_LOOKS) == []
