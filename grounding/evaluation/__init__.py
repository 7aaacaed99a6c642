"""Question sets and their scores: ``eval retrieval`` (`evaluate`), ``eval strategy`` (`evaluate_strategy`) and
``eval memory`` (`score_memory`)."""

from grounding.evaluation.datasets import (
    BadQuestionSet,
    Conversation,
    ConversationMessage,
    ConversationQuestion,
    QuestionSet,
    load,
    load_conversations,
    load_documents,
)
from grounding.evaluation.memory import MEMORY_TOKENS, MemoryAnswer, MemoryResult, MemoryScores, score_memory
from grounding.evaluation.metrics import Figures, Interval, Scores, bootstrap_intervals, figures, score
from grounding.evaluation.retrieval import Evaluation, SearchedDocuments, evaluate_retrieval, fill
from grounding.evaluation.strategy import Message, Share, StrategyScores, evaluate_strategy, load_messages

__all__ = [
    "MEMORY_TOKENS",
    "BadQuestionSet",
    "Conversation",
    "ConversationMessage",
    "ConversationQuestion",
    "Evaluation",
    "Figures",
    "Interval",
    "MemoryAnswer",
    "MemoryResult",
    "MemoryScores",
    "Message",
    "QuestionSet",
    "Scores",
    "SearchedDocuments",
    "Share",
    "StrategyScores",
    "bootstrap_intervals",
    "evaluate_retrieval",
    "evaluate_strategy",
    "figures",
    "fill",
    "load",
    "load_conversations",
    "load_documents",
    "load_messages",
    "score",
    "score_memory",
]
