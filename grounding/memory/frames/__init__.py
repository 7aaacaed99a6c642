"""Frames: what kind of thing a message asks for, and so which kinds of records help with it."""
