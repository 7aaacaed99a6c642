"""Files and shared documents become the same, and no change is lost to a deletion or to an older change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from grounding.documents.sync import Step, step

texts = st.none() | st.sampled_from(["one", "two", "three"])


@given(texts, texts, texts, st.booleans())
def test_the_outcome_is_one_of_both_and_a_change_wins_over_none(
    base: str | None, here: str | None, shared: str | None, newer: bool
) -> None:
    what = step(base, here, shared, here_is_newer=newer)
    outcome = {
        Step.NOTHING: here,
        Step.PUT: here,
        Step.REMOVE: None,
        Step.WRITE: shared,
        Step.DELETE: None,
    }[what]
    if here == shared:
        assert what is Step.NOTHING
    elif here == base:
        assert outcome == shared
    elif shared == base:
        assert outcome == here
    elif None in (here, shared):
        assert outcome is not None
    else:
        assert outcome == (here if newer else shared)
    if what in (Step.WRITE, Step.PUT):
        assert outcome is not None
