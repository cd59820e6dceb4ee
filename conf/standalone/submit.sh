#!/usr/bin/env bash
# A run on a standalone cluster, the driver here:
#   conf/standalone/submit.sh spark://master.example.org:7077 steady --broker rabbit.yaml --store URI
# The workers need Spark 4.2.0, Java 17 and nothing else: Python and all it needs travel with the job
# (make archive FOR=executors), and so do Delta's jars, which spark-submit fetches.
set -euo pipefail
cd "$(dirname "$0")/../.."

master=${1:?"usage: $0 spark://HOST:7077 SCENARIO --broker FILE --store URI [OPTION...]"}
shift
archive=${ARCHIVE:-dist/bench-spark-executors.tar.gz}
[ -e "$archive" ] || { echo "$archive is missing: make archive FOR=executors" >&2; exit 3; }

exec "${SPARK_HOME:?"the directory of Spark 4.2.0"}/bin/spark-submit" --master "$master" \
    --properties-file spark-defaults.conf \
    --archives "$archive#environment" \
    --conf spark.pyspark.python=./environment/bin/python \
    --conf spark.pyspark.driver.python="${DRIVER_PYTHON:-$PWD/.venv/bin/python}" \
    --executor-cores "${EXECUTOR_CORES:-2}" --executor-memory "${EXECUTOR_MEMORY:-1g}" \
    jobs/run_scenario.py "$@"
