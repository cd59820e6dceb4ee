#!/usr/bin/env bash
# A run on Kubernetes without an operator, the driver in a pod of its own:
#   kubectl apply -f conf/kubernetes/rbac.yaml -f conf/kubernetes/files.yaml
#   conf/kubernetes/spark-submit.sh https://kubernetes.example.org:6443 \
#       steady --broker /etc/bench/rabbit.yaml --store s3://bucket/bench
# Executors reach the collector through the driver's headless service, which Spark makes and names
# in spark.driver.host.
set -euo pipefail
cd "$(dirname "$0")/../.."

api=${1:?"usage: $0 https://API:6443 SCENARIO --broker FILE --store URI [OPTION...]"}
shift
exec "${SPARK_HOME:?"the directory of Spark 4.2.0"}/bin/spark-submit" \
    --master "k8s://$api" --deploy-mode cluster --name bench-spark \
    --properties-file conf/docker/spark-defaults.conf \
    --conf spark.kubernetes.namespace="${NAMESPACE:-bench}" \
    --conf spark.kubernetes.container.image="${IMAGE:-registry.example.org/bench-spark:0.1.0}" \
    --conf spark.kubernetes.authenticate.driver.serviceAccountName=bench-spark \
    --conf spark.kubernetes.driver.podTemplateFile=conf/kubernetes/driver-pod.yaml \
    --conf spark.kubernetes.executor.podTemplateFile=conf/kubernetes/executor-pod.yaml \
    --conf spark.executor.instances="${EXECUTORS:-4}" \
    --conf spark.executor.cores="${EXECUTOR_CORES:-2}" \
    --conf spark.executor.memory="${EXECUTOR_MEMORY:-1g}" \
    --conf spark.executor.memoryOverhead="${EXECUTOR_OVERHEAD:-1g}" \
    --conf spark.driver.memory="${DRIVER_MEMORY:-2g}" \
    --conf spark.driver.memoryOverhead="${DRIVER_OVERHEAD:-1g}" \
    local:///opt/bench-spark/jobs/run_scenario.py "$@"
