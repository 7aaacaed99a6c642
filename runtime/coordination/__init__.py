"""Coordination of several processes: news, leadership, work streams and durable jobs."""

from runtime.coordination.hub import EVERYBODY, Hub, News
from runtime.coordination.jobs import Job, Jobs
from runtime.coordination.leadership import KEY, Leadership
from runtime.coordination.work_streams import GROUP, Given, WorkStreams, asks_after, entries_of, renews_after

__all__ = [
    "EVERYBODY",
    "GROUP",
    "KEY",
    "Given",
    "Hub",
    "Job",
    "Jobs",
    "Leadership",
    "News",
    "WorkStreams",
    "asks_after",
    "entries_of",
    "renews_after",
]
