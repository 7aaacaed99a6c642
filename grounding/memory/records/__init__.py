"""Typed records: the decisions, facts, procedures, episodes, censors and items of a workspace or a person."""
