"""Choose the standing rules that a prompt tells.

They have a budget of their own and compete with nothing else. A general rule ("answer in German") applies to every
message. A rule with a condition ("when I ask about distances") and a preference about some thing ("I prefer trains")
apply to messages that are like them in meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from connectors.message import Scope, person_of_audience
from grounding.memory.records import Record, Records, Type, is_general
from grounding.memory.selection.censors import FOREIGN
from grounding.memory.selection.selection import Costs, as_selected
from grounding.prompt_input import SelectedRecord
from grounding.retrieval import spell_out, term_set

RULES_TOKENS = 400
"""Tokens of all rules in a prompt: about sixteen rules."""
GENERAL_TOKENS = 250
"""Tokens that general rules may take of these if others apply, too."""
MOST_COMPARED = 100
"""Most rules that are compared with a message."""
LEAST_SIMILAR = 0.1
"""The least cosine of a message and a rule that is not general, by the deeper model where it is there.

A rule too few is worse than a rule too many. Measured on the rules of twenty long chats (beam-100k) and the questions
to which they apply: with WordLlama .96 and with the deeper MiniLM .99 of the rules that apply are told, .62 and .74 of
the same person's others, most of which are near, and .14 and .13 of the rules of people who talk about other things.
"""
_MEASURED = frozenset({"wordllama-l2-supercat", "all-minilm-l6-v2-8bit"})
"""With other embedding models all rules are told as far as they fit: a rule says its condition."""


class RuleSelector:
    """Selects standing rules. *costs* returns the tokens of a rule in a prompt, *model* the embedding model of a
    scope."""

    def __init__(self, records: Records, *, costs: Costs, model: Callable[[Scope], str]) -> None:
        self._records = records
        self._costs = costs
        self._model = model

    async def select(
        self, scope: Scope, rules: Sequence[Record], text: str, earlier: Sequence[str]
    ) -> tuple[SelectedRecord, ...]:
        """Return those of *rules* (see `rules_for`) that apply to *text*, said after *earlier*, as far as they fit.

        Raises `IndexUnavailable`, `EmbedderUnavailable` and `connectors.message.StoreUnavailable`.
        """
        if all(is_general(one.text) for one in rules):
            return self.fit(rules, {})
        question = spell_out(text, earlier, len(term_set(text)))
        found = await self._records.search_by_type(scope, question, {Type.RULE: MOST_COMPARED})
        similarities = {one.record.id: one.similarity if one.deep is None else one.deep for one in found}
        if self._model(scope) in _MEASURED:
            similarities = {name: cosine for name, cosine in similarities.items() if cosine >= LEAST_SIMILAR}
        return self.fit(rules, similarities)

    def fit(
        self, rules: Sequence[Record], similarities: Mapping[str, float] | None = None
    ) -> tuple[SelectedRecord, ...]:
        """Return the general ones of *rules* (the newest first) and those with a similarity, as far as they fit, the
        oldest first. Without *similarities* all are wanted, the newest first."""
        if similarities is None:
            similarities = dict.fromkeys((one.id for one in rules), 0.0)
        general = [one for one in rules if is_general(one.text)]
        alike = [one for one in rules if one not in general and one.id in similarities]
        alike.sort(key=lambda one: -similarities[one.id])  # stable: of equals the newest stays first
        first = self._fitting(general, GENERAL_TOKENS if alike else RULES_TOKENS)
        left = RULES_TOKENS - sum(self._costs(one, "summary") for one in first)
        told = [*first, *self._fitting([*alike, *(one for one in general if one not in first)], left)]
        told.sort(key=_newness)
        return tuple(
            as_selected(one, "summary").model_copy(
                update={"similarity": round(similarities.get(one.id, 0.0), 6), "tokens": self._costs(one, "summary")}
            )
            for one in told
        )

    def _fitting(self, rules: Sequence[Record], tokens: int) -> list[Record]:
        """Return as many of *rules* (the best first) as fit into *tokens*."""
        fitting: list[Record] = []
        for one in rules:
            if (cost := self._costs(one, "summary")) <= tokens:
                fitting.append(one)
                tokens -= cost
        return fitting


def rules_for(asker: str, rules: Sequence[Record]) -> tuple[Record, ...]:
    """Return those of *rules* that concern *asker* (``connector:user_id``; empty: nobody in particular), the newest
    first.

    A rule that was said in a group concerns the person who said it, another one (from a direct message, or added by
    hand) everybody who may see it. Rules of foreign origin concern nobody.
    """
    concerning = [one for one in rules if _concerns(one, asker) and one.provenance.origin not in FOREIGN]
    return tuple(sorted(concerning, key=_newness, reverse=True))


def _concerns(rule: Record, asker: str) -> bool:
    is_for_all = not rule.provenance.context_id or person_of_audience(rule.audience) is not None
    return is_for_all or (bool(asker) and rule.provenance.author == asker)


def _newness(rule: Record) -> tuple[str, str]:
    """Return a key that sorts rules by the time when they were last said."""
    return rule.confirmed_at or rule.created_at, rule.id
