#!/bin/sh
# Sets how many copies the queues perf-test-mirrored-* have in a cluster of RabbitMQ.
#
#     rabbitmq-mirrors.sh [none] [NAME=VALUE ...]
#
# The number is the suite's parameter broker.mirrors; with `none` the policy is removed.
set -eu
copies=${BENCH_SPARK_PARAMETER_BROKER_MIRRORS:?the suite has no parameter broker.mirrors}
if [ "${1:-}" = none ]; then
    ${RABBITMQCTL:-rabbitmqctl} clear_policy bench-spark-mirrors
else
    ${RABBITMQCTL:-rabbitmqctl} set_policy --apply-to queues bench-spark-mirrors \
        '^perf-test-mirrored-' "{\"ha-mode\":\"exactly\",\"ha-params\":$copies}"
fi
