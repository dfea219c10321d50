#!/bin/bash
# Plays the queue on one machine, to try a plan before it goes to a cluster. After `onedraw plan ... --shards 8 --out run`:
#
#     bash local.sh run 8 2
#
# works on the shards of each round in random order, two at a time, until the run is complete.
set -u
folder=$1 shards=$2 jobs=${3:-2}
onedraw=${ONEDRAW:-onedraw}

while true; do
    # A shard that fails does not stop the others, as in a queue.
    seq "$shards" | shuf | xargs -P "$jobs" -I{} $onedraw work "$folder" --shard {} --no-progress
    $onedraw step "$folder"
    status=$?
    [ "$status" -eq 4 ] || exit "$status"
done
