"""Administrative acts, and the log of them.

`AuditLog` says who did what, when and from where, and shows whether that was changed afterwards.
"""

from runtime.operations.audit import (
    ERASED,
    Actor,
    AuditEntry,
    AuditFilter,
    AuditLink,
    AuditLog,
    AuditPage,
    AuditRow,
    Excerpt,
    InvalidCursor,
    InvalidRetention,
    Verdict,
    audit_key,
    prune_daily,
    verify_export,
)

__all__ = [
    "ERASED",
    "Actor",
    "AuditEntry",
    "AuditFilter",
    "AuditLink",
    "AuditLog",
    "AuditPage",
    "AuditRow",
    "Excerpt",
    "InvalidCursor",
    "InvalidRetention",
    "Verdict",
    "audit_key",
    "prune_daily",
    "verify_export",
]
