#!/usr/bin/env bash
# Everything that has to hold before a change lands. Called by `./agent-runtime test`, which sets up first.
# Arguments go to pytest, e.g. `./agent-runtime test -k strategy`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
step() { printf '\n== %s\n' "$*"; }

step format && ruff format --check .
step lint && ruff check .
# What mypy leaves of the processor compiles the tests once for all processes that run them, which else do it each.
PYTHONDONTWRITEBYTECODE='' pytest --collect-only -qq >/dev/null 2>&1 &
compiling=$!
trap 'kill "$compiling" 2>/dev/null || true' EXIT
step types && mypy
step architecture && lint-imports --no-logo 2>/dev/null || lint-imports
wait "$compiling" || true # what cannot be collected is said below
# Four processes on two cores too, for a third of its time a test waits: for a process it started, or for nothing to
# happen. A file's tests stay together, for some share what takes long to start; and files come in their order, so that
# those of units, which are short, come last and no process is left alone with a long one.
export MALLOC_ARENA_MAX=2 # else what one runtime after the other frees stays with the pools of threads that are gone
step tests && exec pytest -n 4 --dist loadfile --no-loadscope-reorder "$@"
