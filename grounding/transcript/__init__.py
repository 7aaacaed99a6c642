"""The log of each conversation: stored in Redis, copied to a Markdown file for people."""
