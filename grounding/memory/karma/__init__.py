"""Karma: the answers that people marked as good, which later prompts show as examples."""
