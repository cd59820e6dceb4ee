#!/bin/sh
# Sets RabbitMQ's credit flow for connections that are opened from now on.
#
#     rabbitmq-credit-flow.sh [default] [NAME=VALUE ...]
#
# The value is the suite's parameter broker.credit_flow, such as {200,100}; with `default` it is what
# RabbitMQ ships with.
set -eu
credit=${BENCH_SPARK_PARAMETER_BROKER_CREDIT_FLOW:?the suite has no parameter broker.credit_flow}
if [ "${1:-}" = default ]; then
    credit="{400,200}"
fi
eval "set -- ${RABBITMQCTL:-rabbitmqctl}"
"$@" eval "application:set_env(rabbit, credit_flow_default_credit, $credit)."
