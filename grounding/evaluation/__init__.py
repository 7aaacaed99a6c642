"""Question sets and their scores: ``eval retrieval`` (`evaluate`), ``eval strategy`` (`evaluate_strategy`) and
``eval memory`` (`score_memory`), and the comparison of two results (`paired`)."""

from grounding.evaluation.datasets import Asked, Conversation, QuestionSet, Said, load, load_conversations
from grounding.evaluation.memory import MEMORY_TOKENS, MemoryResult, MemoryScores, Recalled, score_memory
from grounding.evaluation.metrics import Difference, Figures, Scores, figures, paired, score
from grounding.evaluation.retrieval import Evaluation, evaluate, fill, load_documents
from grounding.evaluation.strategy import Message, Share, StrategyScores, evaluate_strategy, load_messages

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
    "evaluate_strategy",
    "figures",
    "fill",
    "load",
    "load_conversations",
    "load_documents",
    "load_messages",
    "paired",
    "score",
    "score_memory",
]
