#!/usr/bin/env bash
# Everything that has to hold before a change lands. Called by `./agent-runtime test`, which sets up first.
# Arguments go to pytest, e.g. `./agent-runtime test -k strategy`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
step() { printf '\n== %s\n' "$*"; }

step format && ruff format --check .
step lint && ruff check .
step types && mypy
step architecture && lint-imports --no-logo 2>/dev/null || lint-imports
# A process for each core; a file's tests stay together, for some share what takes long to start.
step tests && exec pytest -n logical --maxprocesses 4 --dist loadfile "$@"
