"""Frames: the kinds of messages, and for each the types of records that help with it."""
