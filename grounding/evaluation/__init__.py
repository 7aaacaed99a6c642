"""Question sets, metrics, and the evaluations of retrieval, strategy and memory."""

from grounding.evaluation.datasets import Asked, Conversation, QuestionSet, Said
from grounding.evaluation.evaluate import (
    MEMORY_TOKENS,
    Evaluation,
    MemoryResult,
    MemoryScores,
    Message,
    Recalled,
    Share,
    StrategyScores,
    evaluate,
)
from grounding.evaluation.metrics import Difference, Figures, Scores, figures, paired, score

__all__ = [
    "MEMORY_TOKENS",
    "Asked",
    "Conversation",
    "Difference",
    "Evaluation",
    "Figures",
    "MemoryResult",
    "MemoryScores",
    "Message",
    "QuestionSet",
    "Recalled",
    "Said",
    "Scores",
    "Share",
    "StrategyScores",
    "evaluate",
    "figures",
    "paired",
    "score",
]
