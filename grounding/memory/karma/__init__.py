"""Karma: the exchanges that people marked as good, and how later answers are shown them."""
