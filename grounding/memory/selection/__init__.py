"""Selection of the records for a prompt: relevance, score, and budgets."""
