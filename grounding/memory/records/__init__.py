"""Typed records: what a workspace, or one person in it, decided, knows, does, went through and has to do."""
