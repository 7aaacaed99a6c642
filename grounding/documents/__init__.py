"""A workspace's Markdown documents: where they are stored, how they are watched, and how they get into the index.

`Library` and `Shelf` store them, `DiskCopy` brings files and shared documents in step, `watch` yields changed files,
`Indexer` fills a collection of passages, and `Catalogue` knows which collection answers.
"""

from grounding.documents.indexer import (
    Indexer,
    Progress,
    Status,
    Synced,
    indexed_text_of,
    passage_of_chunk,
    sha256_of,
)
from grounding.documents.ledger import Backlog, Catalogue, Identity
from grounding.documents.library import (
    PATH_MAX_BYTES,
    SUFFIXES,
    DocumentMissing,
    DocumentRefused,
    FileShelf,
    Library,
    Shelf,
    Skipped,
    check_path,
    check_relative_path,
    decode,
    is_document_path,
    other_forms,
    refuse_twins,
)
from grounding.documents.sync import DiskCopy, SharedShelf
from grounding.documents.watcher import Changed, changed_documents, in_pieces, watch

__all__ = [
    "PATH_MAX_BYTES",
    "SUFFIXES",
    "Backlog",
    "Catalogue",
    "Changed",
    "DiskCopy",
    "DocumentMissing",
    "DocumentRefused",
    "FileShelf",
    "Identity",
    "Indexer",
    "Library",
    "Progress",
    "SharedShelf",
    "Shelf",
    "Skipped",
    "Status",
    "Synced",
    "changed_documents",
    "check_path",
    "check_relative_path",
    "decode",
    "in_pieces",
    "indexed_text_of",
    "is_document_path",
    "other_forms",
    "passage_of_chunk",
    "refuse_twins",
    "sha256_of",
    "watch",
]
