"""The command line ``agent-runtime``. `main.main` runs one command; `client`, `output` and `progress` serve them all.

It exports nothing, so that help is there without an import of what the commands need.
"""
