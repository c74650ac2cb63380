#!/bin/sh
# The process of one container. Without HEAD it starts the cluster, as soon as the containers that carry its parts have
# joined; with HEAD=HOST:PORT it joins that cluster, with the labels in LABELS. A Ray node that ends is started again.
# RAY_AUTH_TOKEN is the same in all containers.
set -eu
trap 'helio down; wait; exit 0' TERM INT # what is on volumes stays, and the container that starts again goes on with it
address=$(hostname -i | cut -d ' ' -f 1) # it may be another one than before
if [ -n "${HEAD:-}" ]; then
    helio join --watch --host "$address" --label "$LABELS" "$HEAD" &
else
    helio up --watch --host node --ray-port 6379 --ray-labels "$LABELS" &
fi
wait "$!"
