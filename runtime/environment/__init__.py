"""The machine that this process runs on: graphics memory, working memory, power, and what can be reached from it."""
