"""A workspace's Markdown documents: kept, synchronised, indexed, watched."""

from grounding.documents.catalogue import Catalogue, Identity, Lacks
from grounding.documents.indexer import (
    Exclusive,
    Indexer,
    Progress,
    Status,
    StoringLease,
    Synced,
    indexed_text_of,
    passage_of_chunk,
)
from grounding.documents.ledger import Backlog, Ledger
from grounding.documents.library import (
    PATH_MAX_BYTES,
    READ_DOCUMENTS,
    SUFFIXES,
    DocumentMissing,
    DocumentRefused,
    FileShelf,
    Library,
    Shelf,
    Skipped,
    check_path,
    checked,
    decode,
    is_document_path,
)
from grounding.documents.sync import DiskCopy, SharedShelf
from grounding.documents.watch import FEW, Changed, changed_documents, in_pieces, watch

__all__ = [
    "FEW",
    "PATH_MAX_BYTES",
    "READ_DOCUMENTS",
    "SUFFIXES",
    "Backlog",
    "Catalogue",
    "Changed",
    "DiskCopy",
    "DocumentMissing",
    "DocumentRefused",
    "Exclusive",
    "FileShelf",
    "Identity",
    "Indexer",
    "Lacks",
    "Ledger",
    "Library",
    "Progress",
    "SharedShelf",
    "Shelf",
    "Skipped",
    "Status",
    "StoringLease",
    "Synced",
    "changed_documents",
    "check_path",
    "checked",
    "decode",
    "in_pieces",
    "indexed_text_of",
    "is_document_path",
    "passage_of_chunk",
    "watch",
]
