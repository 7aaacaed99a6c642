"""Coordinates the processes that share one Redis.

`Hub` carries short-lived news, `WorkStreams` hand each piece of work to one process, `Jobs` keep background work until
it is done, and `Leadership` gives duties that only one process may do to one of them.
"""

from runtime.coordination.hub import EVERYBODY, Hub, News
from runtime.coordination.jobs import Job, Jobs
from runtime.coordination.leadership import LEADER_KEY, Leadership
from runtime.coordination.work_streams import GROUP, StreamEntry, WorkStreams, reclaim_interval, renew_interval

__all__ = [
    "EVERYBODY",
    "GROUP",
    "LEADER_KEY",
    "Hub",
    "Job",
    "Jobs",
    "Leadership",
    "News",
    "StreamEntry",
    "WorkStreams",
    "reclaim_interval",
    "renew_interval",
]
