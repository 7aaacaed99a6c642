"""A session: a run of turns without a long pause, and what of its prompts stays the same from one to the next."""
