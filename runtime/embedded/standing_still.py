"""Whether a process that gives no answer works on something, or stands still."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LOOK_SECONDS = 5.0
"""Between looks at a process that owes an answer."""
STILL_LOOKS = 6
"""So many looks in a row see no sign of work: it was stopped, or all its threads wait for each other. Looks are
counted, not seconds: while the machine sleeps, or whoever looks was stopped, too, nobody looks."""
MOST_LOOKS = 180
"""After so many, 15 minutes, it is given up whatever it does. No single call of the engine takes as long: opening, the
longest, is given five minutes."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a process had done when it was looked at. ``may_work``: a thread of it computes, waits for a processor or a
    disk, or is held by a debugger; or nobody can tell."""

    may_work: bool
    ticks: int = 0
    """Of processor time."""
    moved: int = 0
    """Bytes read from and written to disks, and pages that had to be read."""


def look(pid: int) -> Seen:
    """At the process *pid*. Reads some small files of the kernel; where there are none, it may work."""
    try:
        threads = [_fields(one / "stat") for one in Path(f"/proc/{pid}/task").iterdir()]
        whole = _fields(Path(f"/proc/{pid}/stat"))
        about = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text("ascii").splitlines())
    except (OSError, ValueError):
        return Seen(may_work=True)
    return Seen(
        any(thread[0] in "RDt" for thread in threads),
        int(whole[11]) + int(whole[12]),
        int(whole[9]) + int(about["read_bytes"]) + int(about["write_bytes"]),
    )


def _fields(stat: Path) -> list[str]:
    """From the state on: before it is the name, in parentheses, which may hold anything."""
    return stat.read_text("utf-8", "replace").rpartition(")")[2].split()


class Looks:
    """One after another at the process *pid*, which owes an answer."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before: Seen | None = None
        self._still = 0
        self._count = 0

    def again(self) -> str:
        """Look once more. Why it is to be given up; empty as long as it is not."""
        seen = look(self._pid)
        works = seen.may_work or (self._before is not None and seen != self._before)
        self._before = seen
        self._count += 1
        self._still = 0 if works else self._still + 1
        if self._still > STILL_LOOKS:  # the first only says from where
            return f"gave no answer and did nothing for {STILL_LOOKS * LOOK_SECONDS:g} s"
        if self._count > MOST_LOOKS:
            return f"gave no answer for {MOST_LOOKS * LOOK_SECONDS:g} s"
        return ""
