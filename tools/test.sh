#!/usr/bin/env bash
# All tests that the arguments name, as fast as two cores allow: several processes share them out.
# Nothing is retried.
# WORKERS=1: everything in one process. Tests marked `faults_slow` are for `make test-faults`, those
# marked `deployment` for `make test-deployment`, those marked `s3` and `yarn` for `make test-s3` and
# `make test-yarn`. With all tests (the argument `tests`), or alone with --uncompiled, those of codecs
# and recorder run once more with kernels as plain Python, where an integer that overflows is an error.
set -uo pipefail
cd "$(dirname "$0")/.."

# Images of containers often set it. Then every process would compile all tests and the package anew:
# six seconds of CPU for each of those that share the tests.
unset PYTHONDONTWRITEBYTECODE

# Tests of brokers wait more than they compute, so five processes share two cores well. A file's tests
# stay together; files go out in the order of tests/conftest.py, the longest first.
workers=${WORKERS:-5}
readonly NOTHING_SELECTED=5
# What calls kernels; those of Kafka read memory of librdkafka, which only compiled code can.
readonly UNCOMPILED=(tests/unit/core/test_{hdr,sequences,sequence_pages}.py
    tests/unit/agent/test_{recorder*,flow}.py tests/unit/transports/test_loopback.py
    tests/unit/transports/test_amqp_{confirms,deliveries,message_headers,publishing}.py
    tests/unit/transports/test_{http,tcp}_messages.py
    tests/unit/transports/test_mqtt_{codec,in_flight,lanes,publishing}.py)
readonly DEPLOYMENT=(tests/cluster tests/cli/test_python_api.py tests/cli/test_bridge.py
    tests/cli/test_suites.py tests/cli/test_jvm_log.py tests/brokers/test_embedded_brokers.py
    tests/faults/test_killed_processes.py tests/unit/core/test_kernel_cache.py)
readonly HERE="not faults_slow and not deployment and not s3 and not yarn"

run() {
    .venv/bin/python -m pytest "$@"
    local status=$?
    [ "$status" = "$NOTHING_SELECTED" ] || return "$status"
}

run_uncompiled() {
    echo "uncompiled:"
    NUMBA_DISABLE_JIT=1 run -q -W error::RuntimeWarning -m "$HERE" "$@" "${UNCOMPILED[@]}"
}

if [ "${1:-}" = --uncompiled ]; then
    run_uncompiled
    exit
fi
if [ "${1:-}" = --deployment ]; then
    run -m deployment --numprocesses 2 --dist loadfile --no-loadscope-reorder "${DEPLOYMENT[@]}"
    exit
fi
shared_out=(--numprocesses "$workers" --dist loadfile --no-loadscope-reorder)
[ "$workers" != 1 ] || shared_out=()
run -m "$HERE" "${shared_out[@]}" "$@"
compiled=$?
uncompiled=0
[ "$*" != tests ] || { run_uncompiled "${shared_out[@]}"; uncompiled=$?; }
[ "$compiled" = 0 ] && [ "$uncompiled" = 0 ]
