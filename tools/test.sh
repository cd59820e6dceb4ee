#!/usr/bin/env bash
# All tests that the arguments name, as fast as two cores allow: several processes share them out, then
# those that need the machine to themselves (mark `alone`) run one after the other. Nothing is retried.
# WORKERS=1: everything in one process. Tests marked `faults_slow` are for `make test-faults`, those
# marked `deployment` for `make test-deployment`.
set -uo pipefail
cd "$(dirname "$0")/.."

# Tests of brokers wait more than they compute, so three processes share two cores well. A file's tests
# stay together; files go out in the order of tests/conftest.py, the longest first.
workers=${WORKERS:-3}
readonly NOTHING_SELECTED=5
readonly HERE="not faults_slow and not deployment"

run() {
    .venv/bin/python -m pytest "$@"
    local status=$?
    [ "$status" = "$NOTHING_SELECTED" ] || return "$status"
}

if [ "$workers" = 1 ]; then
    run -m "$HERE" "$@"
    exit
fi
run -m "not alone and $HERE" --numprocesses "$workers" --dist loadfile --no-loadscope-reorder "$@"
together=$?
run -m "alone and $HERE" "$@"
alone=$?
[ "$together" = 0 ] && [ "$alone" = 0 ]
