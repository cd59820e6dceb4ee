#!/bin/sh
# Enables or disables RabbitMQ's management plugin.
#
#     rabbitmq-management.sh [on] [NAME=VALUE ...]
#
# Which of the two is the suite's parameter broker.management; with `on` it is enabled in any case.
set -eu
wanted=${BENCH_SPARK_PARAMETER_BROKER_MANAGEMENT:?the suite has no parameter broker.management}
if [ "${1:-}" = on ]; then
    wanted=on
fi
eval "set -- ${RABBITMQ_PLUGINS:-rabbitmq-plugins}"
case $wanted in
    on) "$@" enable rabbitmq_management ;;
    off) "$@" disable rabbitmq_management ;;
    *) echo "broker.management is $wanted; allowed: on, off" >&2; exit 2 ;;
esac
