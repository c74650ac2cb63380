#!/bin/sh
# The process of one container: a Ray node with the labels in LABELS. Without HEAD it is the head, which also starts the
# cluster as soon as the nodes that carry its parts have joined. RAY_AUTH_TOKEN is the same in all containers.
set -eu
export RAY_AUTH_MODE=token

if [ -n "${HEAD:-}" ]; then
    exec ray start --block --address="$HEAD" --labels="$LABELS" --disable-usage-stats
fi

# The state of Ray is on the volume of the cluster's home, and the container ends with the head, so that it is started again:
# a new head at the same address leads the same cluster, and the other nodes stay in it.
export RAY_gcs_storage=rocksdb RAY_gcs_storage_path="$HELIOGRAPH_HOME/ray-state"
ray start --head --block --port=6379 --labels="$LABELS" --disable-usage-stats &
head=$!
export RAY_ADDRESS="$(hostname -i | cut -d ' ' -f 1):6379"
trap 'helio down; kill "$head"; wait "$head"; rm -rf "$RAY_gcs_storage_path"; exit 0' TERM INT
until helio up --host node; do
    kill -0 "$head" || exit 1
    sleep 5
done
wait "$head"
exit 1
