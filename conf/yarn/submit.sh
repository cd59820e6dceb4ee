#!/usr/bin/env bash
# A run on YARN:
#   conf/yarn/submit.sh steady --broker rabbit.yaml --store hdfs://namenode:8020/bench
# DEPLOY_MODE=cluster puts the driver into the application master: then files are sent along with
# FILES=rabbit.yaml,rabbit.password and named without their directory, and the archive must be the
# whole one (make archive). Nodes need no Python of their own.
set -euo pipefail
cd "$(dirname "$0")/../.."

: "${1:?"usage: $0 SCENARIO --broker FILE --store URI [OPTION...]"}"
mode=${DEPLOY_MODE:-client}
archive=${ARCHIVE:-dist/bench-spark-env.tar.gz}
# hdfs:// is better than a file of this machine: nodes keep what they have localised from there.
case $archive in
    *://*) ;;
    *) [ -e "$archive" ] || { echo "$archive is missing: make archive" >&2; exit 3; } ;;
esac

options=()
if [ "$mode" = client ]; then
    options+=(--conf spark.pyspark.driver.python="${DRIVER_PYTHON:-$PWD/.venv/bin/python}")
else
    # The driver starts in a directory where what --files names is.
    FILES=conf/log4j2.properties${FILES:+,$FILES}
    options+=(
        --conf spark.yarn.appMasterEnv.PYSPARK_PYTHON=./environment/bin/python
        # deltalake writes as this user, like Spark; a ticket of Kerberos names its own.
        --conf spark.yarn.appMasterEnv.HADOOP_USER_NAME="${HADOOP_USER_NAME:-$(id -un)}"
        --conf spark.driver.extraJavaOptions=-Dlog4j2.configurationFile=log4j2.properties
    )
fi
exec "${SPARK_HOME:?"the directory of Spark 4.2.0"}/bin/spark-submit" \
    --master yarn --deploy-mode "$mode" \
    --properties-file "${SETTINGS:-spark-defaults.conf}" \
    --archives "$archive#environment" \
    --conf spark.pyspark.python=./environment/bin/python \
    ${FILES:+--files "$FILES"} \
    ${EXECUTORS:+--num-executors "$EXECUTORS"} --executor-cores "${EXECUTOR_CORES:-2}" \
    --executor-memory "${EXECUTOR_MEMORY:-1g}" \
    --conf spark.executor.memoryOverhead="${EXECUTOR_OVERHEAD:-1g}" \
    "${options[@]}" \
    jobs/run_scenario.py "$@"
