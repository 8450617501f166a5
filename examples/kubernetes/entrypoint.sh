#!/bin/sh
# What a pod of a Spark job runs. `executor` is what Spark's scheduler asks of an image; anything else is run as it is, such as
# the driver's program.
set -eu
[ "${1:-}" = executor ] || exec "$@"

set --
number=0
while option=$(printenv "SPARK_JAVA_OPT_$number"); do
  set -- "$@" "$option"
  number=$((number + 1))
done
exec java "$@" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "${SPARK_CONF_DIR:-}:$SPARK_HOME/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
