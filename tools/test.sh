#!/usr/bin/env bash
# All tests that the arguments name, as fast as two cores allow: several processes share them out, then
# those that need the machine to themselves (mark `alone`) run one after the other.
# Where up to five fail while several processes compete for the machine, these are tried once more, one
# after the other; the last lines name those that passed only then. What fails twice has failed.
# WORKERS=1: everything in one process, once. Tests marked `faults_slow` are for `make test-faults`,
# those marked `deployment` for `make test-deployment`.
set -uo pipefail
cd "$(dirname "$0")/.."

# Tests of brokers wait more than they compute, so three processes share two cores well. A file's tests
# stay together; files go out in the order of tests/conftest.py, the longest first.
workers=${WORKERS:-3}
readonly SOME_FAILED=1 NOTHING_SELECTED=5 MOST_TRIED_AGAIN=5
readonly HERE="not faults_slow and not deployment"
readonly LAST_FAILED=.pytest_cache/v/cache/lastfailed

run() {
    .venv/bin/python -m pytest "$@"
    local status=$?
    [ "$status" = "$NOTHING_SELECTED" ] || return "$status"
}

# The names of the tests that pytest's cache calls failed, one per line.
failed() {
    [ ! -e "$LAST_FAILED" ] ||
        .venv/bin/python -c 'import json, sys; print(*json.load(open(sys.argv[1])), sep="\n")' "$LAST_FAILED"
}

if [ "$workers" = 1 ]; then
    run -m "$HERE" "$@"
    exit
fi
rm -f "$LAST_FAILED"
run -m "not alone and $HERE" --numprocesses "$workers" --dist loadfile --no-loadscope-reorder "$@"
together=$?
mapfile -t first_time < <(failed)
again=()
# Told to stop at a failure (-x, --maxfail), pytest has left tests out: trying that one again proves nothing.
if [ "$together" = "$SOME_FAILED" ] && [ "${#first_time[@]}" -le "$MOST_TRIED_AGAIN" ] &&
    [[ " $* " != *" -x "* && " $* " != *" --exitfirst "* && " $* " != *" --maxfail"* ]]; then
    again=("${first_time[@]}")
    run -m "not alone and $HERE" --last-failed --last-failed-no-failures none "$@"
    together=$?
fi
mapfile -t second_time < <(failed)
run -m "alone and $HERE" "$@"
alone=$?

for test in "${again[@]}"; do
    case $'\n'$(printf '%s\n' "${second_time[@]}")$'\n' in
    *$'\n'"$test"$'\n'*) echo "failed twice: $test" ;;
    *) echo "passed when run alone: $test" ;;
    esac
done
[ "$together" = 0 ] && [ "$alone" = 0 ]
