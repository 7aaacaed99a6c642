"""Decide what a message needs: nothing, its conversation, or the workspace's documents. Pure.

`choose` decides by cues, which `cues_of` reads from a workspace's files. For what they leave open,
`choose_by_relevance` decides by the workspace's documents, and by whether the message leans on the conversation
(`leaning`).
"""

from grounding.strategy.cues import Cues, FoldedText, Text, fold, matches, phrases, word_set, words_of
from grounding.strategy.languages import (
    ENGLISH,
    LANGUAGES,
    InvalidCues,
    as_table,
    cues_of,
    joined_cues,
    phrase_problem,
    problem_in,
)
from grounding.strategy.leaning import earlier_for, leaning, leans_on
from grounding.strategy.strategy import (
    ASSISTANT,
    Choice,
    Reason,
    Strategy,
    addresses_assistant,
    choose,
    choose_by_relevance,
    earlier_questions,
    is_question,
    is_small_talk,
    search_text,
    tail_of,
    without_courtesy,
)

__all__ = [
    "ASSISTANT",
    "ENGLISH",
    "LANGUAGES",
    "Choice",
    "Cues",
    "FoldedText",
    "InvalidCues",
    "Reason",
    "Strategy",
    "Text",
    "addresses_assistant",
    "as_table",
    "choose",
    "choose_by_relevance",
    "cues_of",
    "earlier_for",
    "earlier_questions",
    "fold",
    "is_question",
    "is_small_talk",
    "joined_cues",
    "leaning",
    "leans_on",
    "matches",
    "phrase_problem",
    "phrases",
    "problem_in",
    "search_text",
    "tail_of",
    "without_courtesy",
    "word_set",
    "words_of",
]
