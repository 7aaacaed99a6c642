"""What `eval` does: the runs, their results, and the page with the curves."""
