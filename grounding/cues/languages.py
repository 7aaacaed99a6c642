"""The cue sets that ship, by the name of the language."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from grounding.cues.english import ENGLISH
from grounding.cues.french import FRENCH
from grounding.cues.german import GERMAN
from grounding.cues.kinds import Cues
from grounding.cues.spanish import SPANISH

LANGUAGES = {"french": FRENCH, "german": GERMAN, "spanish": SPANISH}
"""Those that a workspace may choose beside English."""


def spoken(languages: Iterable[str]) -> Cues:
    """English and *languages* together. Raises KeyError for a language that does not ship."""
    return reduce(Cues.joined, (LANGUAGES[language] for language in languages), ENGLISH)
