"""Sessions, and the parts of their prompts that stay the same from turn to turn."""
