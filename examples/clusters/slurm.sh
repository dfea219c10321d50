#!/bin/bash
# A planned run on SLURM. On the login node, after `onedraw plan ... --shards 200 --out run`:
#
#     bash slurm.sh run 200
#
# submits an array with a job for each shard, and behind it a job that takes in what they have done, makes the next
# round and submits the next array, until the run is complete. If jobs die or run out of time, the next array does what
# is left. If nothing moves, the chain ends with status 5. Change the requests below to what your simulator needs.
set -u
folder=$(readlink -f "$1") shards=$2 turn=${3:-first}
script=$(readlink -f "$0")
onedraw=${ONEDRAW:-onedraw}

if [ "$turn" = next ]; then
    # Network disks may show the last files late.
    $onedraw step "$folder" --wait "${ONEDRAW_WAIT:-60}"
    status=$?
    [ "$status" -eq 4 ] || exit "$status"
fi

# A job ends by itself, and saves, a little before its time is up.
array=$(sbatch --parsable --job-name=onedraw-work --array="1-$shards" --cpus-per-task=1 --mem=2G --time=04:00:00 \
    --output="$folder/work-%A-%a.log" \
    --wrap "$onedraw work '$folder' --shard \$SLURM_ARRAY_TASK_ID --max-seconds 14000 --no-progress") || exit 1
sbatch --parsable --job-name=onedraw-step --dependency="afterany:${array%%;*}" --mem=4G --time=01:00:00 \
    --mail-type=FAIL --output="$folder/step-%j.log" --wrap "bash '$script' '$folder' $shards next"
