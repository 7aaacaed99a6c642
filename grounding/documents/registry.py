"""What the index holds, document by document, as it is written down in Redis. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from connectors.message import AgentRuntimeError
from grounding.documents.library import Found, Skipped

REGISTRY_VERSION = 1


class RegistryTooNew(AgentRuntimeError):
    """The registry was written by a newer version."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A document as the index has it: hash of its text, how it was cut and embedded, and the file it came from."""

    sha256: str
    fingerprint: str
    chunks: int
    size_bytes: int
    modified_ns: int

    def to_json(self) -> str:
        """As it is stored."""
        return json.dumps(
            {
                "v": REGISTRY_VERSION,
                "sha256": self.sha256,
                "fingerprint": self.fingerprint,
                "chunks": self.chunks,
                "size_bytes": self.size_bytes,
                "modified_ns": self.modified_ns,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Registered:
        """The inverse of `to_json`. Raises `RegistryTooNew` for a format that this version does not know."""
        stored = json.loads(text)
        if stored.get("v") != REGISTRY_VERSION:
            raise RegistryTooNew(
                f"the registry of documents has format {stored.get('v')!r}, this version reads {REGISTRY_VERSION}: "
                "run `agent-runtime index --fresh`, or the version that wrote it"
            )
        return cls(
            stored["sha256"], stored["fingerprint"], stored["chunks"], stored["size_bytes"], stored["modified_ns"]
        )


def pending(
    registry: Mapping[str, Registered],
    skipped: Mapping[str, Skipped],
    there: Collection[Found],
    unfit: Collection[Skipped],
    fingerprint: str,
) -> set[str]:
    """Documents that are new, changed, gone, or cut and embedded otherwise than they would be now; and what is no
    document, or no longer none, without that being known."""
    # A name that is none of a document's is seen at once: whatever lies there now is no longer left out for it.
    named = {path: item for path, item in skipped.items() if item.why != "name"}
    waiting = {item.path for item in there if not _is_known(item, registry.get(item.path), fingerprint)}
    waiting -= {item.path for item in there if _looks_like(item, named.get(item.path))}
    waiting |= {item.path for item in unfit if not _looks_like(item, skipped.get(item.path))}
    here = {item.path for item in there} | {item.path for item in unfit}
    return waiting | (registry.keys() - here) | (skipped.keys() - here)


def _is_known(found: Found, known: Registered | None, fingerprint: str) -> bool:
    if known is None or known.fingerprint != fingerprint:
        return False
    if found.sha256:
        return known.sha256 == found.sha256
    return (known.size_bytes, known.modified_ns) == (found.size_bytes, found.modified_ns)


def _looks_like(found: Found | Skipped, known: Skipped | None) -> bool:
    return known is not None and (known.size_bytes, known.modified_ns) == (found.size_bytes, found.modified_ns)
