#!/usr/bin/env bash
# Builds the Dockerfile without a registry, then calls what is in the image as its user.
# Needs root, buildah and mmdebstrap (Debian: apt-get install buildah mmdebstrap), the package index
# and Maven Central; and .venv, whose pyspark stands for the Spark of the base image.
# The two bases are stand-ins of Debian 12 under their real names: Python and Java by mmdebstrap, and
# the same with Spark in /opt/spark and a user spark. Everything is in build/image; the storage of
# other images is not touched.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly WORK="$PWD/build/image"
readonly SPARK="$PWD/.venv/lib/python3.11/site-packages/pyspark"
readonly IMAGE=bench-spark:tried
export BUILDAH_ISOLATION=chroot

say() { printf 'try_image: %s\n' "$*" >&2; }
give_up() { say "$*"; exit 3; }
bases() { sed -n 's/^FROM \([^ ]*\).*/\1/p' Dockerfile; }
buildah() { command buildah --root "$WORK/storage" --runroot "$WORK/run" --storage-driver vfs "$@"; }

[ "$(id -u)" = 0 ] || give_up "needs root"
for tool in buildah mmdebstrap; do
    command -v "$tool" >/dev/null || give_up "$tool is missing: apt-get install buildah mmdebstrap"
done
[ -d "$SPARK/jars" ] || give_up "there is no Spark in .venv of Python 3.11: make setup"
mkdir -p "$WORK"

# What this machine's pip and uv need to reach their index, in the image that is built only.
machine() {
    local container=$1 setting
    buildah copy -q "$container" /etc/ssl/certs /etc/ssl/certs >/dev/null
    [ ! -e /etc/pip.conf ] || buildah copy -q "$container" /etc/pip.conf /etc/pip.conf >/dev/null
    while IFS= read -r setting; do
        buildah config --env "$setting" "$container"
    done < <(env | grep -E '^(PIP_(CERT|INDEX_URL|EXTRA_INDEX_URL)|UV_[A-Z_]+|SSL_CERT_FILE|REQUESTS_CA_BUNDLE|https?_proxy|HTTPS?_PROXY)=' || true)
    # Debian's pip refuses to install beside Debian's own packages.
    buildah config --env PIP_BREAK_SYSTEM_PACKAGES=1 "$container"
}

if [ ! -e "$WORK/debian.tar" ]; then
    say "a root of Debian 12 with Python and Java"
    mmdebstrap --quiet --variant=minbase \
        --include=ca-certificates,openjdk-17-jre-headless,procps,python-is-python3,python3-pip,python3-venv \
        bookworm "$WORK/debian.tar.partial"
    mv "$WORK/debian.tar.partial" "$WORK/debian.tar"
fi

{ read -r python_base; read -r spark_base; } < <(bases)
say "stand-ins for $python_base and $spark_base"
container=$(buildah from scratch)
buildah add -q "$container" "$WORK/debian.tar" / >/dev/null
machine "$container"
buildah commit -q "$container" "docker.io/library/$python_base" >/dev/null
buildah config --env SPARK_HOME=/opt/spark --workingdir /opt/spark/work-dir "$container"
buildah copy -q "$container" "$SPARK" /opt/spark >/dev/null
buildah run "$container" -- sh -c 'useradd --system --home /opt/spark spark && mkdir -p /opt/spark/work-dir \
    && chown spark /opt/spark/work-dir && chmod -R a+rX /opt/spark && chmod a+x /opt/spark/bin/*'
buildah commit -q --rm "$container" "docker.io/$spark_base" >/dev/null

say "the Dockerfile"
buildah build -q --pull-never --layers=false --tag "$IMAGE" . >/dev/null

container=$(buildah from --pull-never "$IMAGE")
trap 'buildah rm "$container" >/dev/null' EXIT
in_image() {
    say "in the image: $*"
    buildah run "$container" -- "$@"
}
in_image id -un
in_image bench-spark --help >/dev/null
in_image bench-spark doctor || say "doctor ended with $?"
in_image bench-spark run steady --broker loopback --store /tmp/bench --format json \
    --set phases.warmup_seconds=1 --set phases.measure_seconds=3 >"$WORK/result.json" ||
    [ $? = 4 ] # a busy machine may not keep the rate
in_image spark-submit --master 'local[4]' --properties-file /opt/bench-spark/conf/docker/spark-defaults.conf \
    /opt/bench-spark/jobs/run_scenario.py steady --broker loopback --store /tmp/bench --run-id submitted \
    --set phases.warmup_seconds=1 --set phases.measure_seconds=3 || [ $? = 4 ]
in_image bench-spark runs --store /tmp/bench
say "works"
