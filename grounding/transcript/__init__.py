"""The conversation's log: Redis holds it, a Markdown file is its human copy."""
