"""The tools that the model may be offered: a line for each."""

from __future__ import annotations

from config.settings import Settings
from grounding.codex.tool import FindsMaterial, search_codex
from grounding.lookups import read_section, search_documents
from grounding.memory.global_context_tools import append_context, delete_context, replace_context
from grounding.memory.records.item_tools import create_item, delete_item, expand, query_items, update_item
from grounding.memory.records.port import KeepsRecords
from grounding.tokens import Tokens
from grounding.tools import Toolbox
from runtime.knowledge import Knowledge
from runtime.wiring.kept import Kept


def wire_tools(
    settings: Settings, kept: Kept, knowledge: Knowledge, tokens: Tokens, records: KeepsRecords, material: FindsMaterial
) -> Toolbox:
    """All of them; see docs/tools.md."""
    lines, approval = kept.global_contexts, settings.global_context_approval
    return Toolbox(
        append_context(lines, approval),
        create_item(records),
        delete_context(lines, approval),
        delete_item(records),
        expand(records),
        query_items(records),
        read_section(kept.contexts),
        replace_context(lines, approval),
        search_codex(
            material,
            tokens,
            settings.llm_grounding_top_k,
            settings.llm_grounding_max_doc_excerpt_bytes,
            settings.llm_grounding_qmd_max_tokens,
        ),
        search_documents(
            knowledge.finding,
            tokens,
            settings.llm_grounding_top_k,
            settings.llm_grounding_max_doc_excerpt_bytes,
            settings.llm_grounding_qmd_max_tokens,
        ),
        update_item(records),
    )
