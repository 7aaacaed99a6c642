"""Files and shared documents become the same, and no change is lost to a deletion or to an older change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from grounding.documents.sync import Action, merge

texts = st.none() | st.sampled_from(["one", "two", "three"])


@given(texts, texts, texts, st.booleans())
def test_the_outcome_is_one_of_both_and_a_change_wins_over_none(
    base: str | None, here: str | None, shared: str | None, newer: bool
) -> None:
    what = merge(base, here, shared, file_is_newer=newer)
    outcome = {
        Action.NOTHING: here,
        Action.PUT: here,
        Action.REMOVE: None,
        Action.WRITE: shared,
        Action.DELETE: None,
    }[what]
    if here == shared:
        assert what is Action.NOTHING
    elif here == base:
        assert outcome == shared
    elif shared == base:
        assert outcome == here
    elif None in (here, shared):
        assert outcome is not None
    else:
        assert outcome == (here if newer else shared)
    if what in (Action.WRITE, Action.PUT):
        assert outcome is not None
