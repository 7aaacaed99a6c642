"""Which records a prompt shows: their relevance, their score, and how they share the room there is."""
