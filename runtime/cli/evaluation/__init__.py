"""What `eval` does: the runs and their results."""
