"""Work outside of turns. After a reply the jobs run that `runtime.turns` enqueued:

- ``summary.refresh`` (`SummaryRefresh`) writes the context document, ``context.index`` (`ContextSync`) indexes it;
- `EXTRACT_RECORDS` (`RecordsExtraction`) finds typed records;
- ``turn.remember`` (`RememberTurns`) lets later turns recall this one, `DEEPEN_TURNS` (`DeepenTurns`) by its meaning in
  other words too, `FORGET_TURNS` (`ForgetTurns`) undoes that.

People cause the rest: `Marking` marks replies, `Forgetting` forgets, `DirectiveCondenser` shortens directives,
`IndexRebuilder`
rebuilds the index, `ModelMigration` moves it to another embedding model. `RecordSweep` looks after records every hour,
and has long ones summed up (`RecordSummaries`).
"""

from runtime.background.after_turn import DEEPEN_TURNS, DeepenTurns, RememberTurns, SummaryRefresh
from runtime.background.contexts import JOB as INDEX_CONTEXT
from runtime.background.contexts import ContextEditor, ContextMoved, ContextSync
from runtime.background.directives import DirectiveCondenser, NoModelAnswer
from runtime.background.extraction import ExtractionMarks, RecordsExtraction
from runtime.background.forgetting import JOB as FORGET_TURNS
from runtime.background.forgetting import Forgetting, ForgetTurns
from runtime.background.karma import Marker, Marking
from runtime.background.migration import DAY_SECONDS, ModelMigration, idle_collections, migration_status
from runtime.background.rebuild import IndexRebuilder, ProgressCallback, ReindexCounts, RestoreCounts
from runtime.background.records import RecordsAndManifests, RecordSummaries, RecordSweep

__all__ = [
    "DAY_SECONDS",
    "DEEPEN_TURNS",
    "FORGET_TURNS",
    "INDEX_CONTEXT",
    "ContextEditor",
    "ContextMoved",
    "ContextSync",
    "DeepenTurns",
    "DirectiveCondenser",
    "ExtractionMarks",
    "ForgetTurns",
    "Forgetting",
    "IndexRebuilder",
    "Marker",
    "Marking",
    "ModelMigration",
    "NoModelAnswer",
    "ProgressCallback",
    "RecordSummaries",
    "RecordSweep",
    "RecordsAndManifests",
    "RecordsExtraction",
    "ReindexCounts",
    "RememberTurns",
    "RestoreCounts",
    "SummaryRefresh",
    "idle_collections",
    "migration_status",
]
