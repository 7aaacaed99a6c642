"""The layers of memory: each turns what is known into a section of the prompt. Pure."""
