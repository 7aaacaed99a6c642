"""What the index holds, document by document, as it is written down in Redis. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass

from connectors.message import AgentRuntimeError
from grounding.documents.library import Found

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


def pending(registry: dict[str, Registered], on_disk: dict[str, Found], fingerprint: str) -> int:
    """Documents that are new, changed, gone, or cut and embedded otherwise than they would be now."""
    same = sum(
        (known := registry.get(path)) is not None
        and (known.size_bytes, known.modified_ns, known.fingerprint)
        == (found.size_bytes, found.modified_ns, fingerprint)
        for path, found in on_disk.items()
    )
    return len(on_disk.keys() | registry.keys()) - same
