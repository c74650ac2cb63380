#!/bin/sh
# The process of one container: a Ray node with the labels in LABELS. Without HEAD it is the head, which also starts the
# cluster as soon as the nodes that carry its parts have joined. RAY_AUTH_TOKEN is the same in all containers.
set -eu
export RAY_AUTH_MODE=token

if [ -n "${HEAD:-}" ]; then
    exec ray start --block --address="$HEAD" --labels="$LABELS" --disable-usage-stats
fi

ray start --head --port=6379 --labels="$LABELS" --disable-usage-stats
export RAY_ADDRESS="$(hostname -i | cut -d ' ' -f 1):6379"
trap 'helio down; ray stop; exit 0' TERM INT
until helio up --host node; do
    sleep 5
done
while :; do
    sleep 3600 &
    wait $!
done
