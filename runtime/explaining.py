"""A turn in words that people understand: what its strategy and reason mean. Pure."""

from __future__ import annotations

STRATEGIES = {
    "none": "no retrieval",
    "tail": "this conversation's earlier turns",
    "qmd": "the workspace's documents",
}
REASONS = {
    "empty": "the message has no text",
    "small_talk": "a greeting, thanks or the like: nothing needs to be looked up",
    "chat_memory_cue": "the message refers to what was said before",
    "workspace_retrieval_cue": "the message asks for the workspace's documents",
    "implicit_workspace_question": "a question that the workspace's documents may answer",
    "workspace_match": "the workspace's documents have passages that are relevant to the message",
    "workspace_vocabulary": "the message uses words of the workspace's documents",  # of turns before
    "no_retrieval_cue": "nothing in the message asks for documents or earlier turns",
    "skip_grounding": "grounding was switched off for this message",
}
"""What the reasons mean."""
