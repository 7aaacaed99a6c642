"""What a change would do before it is made: recorded turns under a draft of the directives, with both prompts side by
side and, on request, both answers.

Start with `TurnReplayer.replay_place`; `PreviewAnswers` asks the model. A single new question is built with a draft by
`runtime.turns.PromptBuilder.build`.
"""

from runtime.preview.answers import AnswerEstimate, AnswerPair, AnswerRequest, PreviewAnswer, PreviewAnswers
from runtime.preview.comparison import BlockComparison, PromptComparison, Segment, compare_prompts, compare_words
from runtime.preview.replay import (
    MOST_TURNS,
    Drafts,
    MissingTurn,
    Progress,
    Replay,
    ReplayedTurn,
    TurnReplayer,
    no_progress,
)

__all__ = [
    "MOST_TURNS",
    "AnswerEstimate",
    "AnswerPair",
    "AnswerRequest",
    "BlockComparison",
    "Drafts",
    "MissingTurn",
    "PreviewAnswer",
    "PreviewAnswers",
    "Progress",
    "PromptComparison",
    "Replay",
    "ReplayedTurn",
    "Segment",
    "TurnReplayer",
    "compare_prompts",
    "compare_words",
    "no_progress",
]
