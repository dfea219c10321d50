#!/bin/bash
# A planned run on PBS Professional or OpenPBS. After `onedraw plan ... --shards 200 --out run`:
#
#     bash pbs.sh run 200
#
# submits an array with a job for each shard, and behind it a job that takes in what they have done, makes the next
# round and submits the next array, until the run is complete. If jobs die or run out of time, the next array does what
# is left. If nothing moves, the chain ends with status 5. Change the requests below to what your simulator needs. (With
# Torque, say -t instead of -J, and PBS_ARRAYID instead of PBS_ARRAY_INDEX.)
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
array=$(qsub -N onedraw-work -J "1-$shards" -V -j oe -o "$folder" -l select=1:ncpus=1:mem=2gb -l walltime=04:00:00 <<JOB
cd "\$PBS_O_WORKDIR" || exit 1
$onedraw work '$folder' --shard \$PBS_ARRAY_INDEX --max-seconds 14000 --no-progress
JOB
) || exit 1
qsub -N onedraw-step -W "depend=afterany:$array" -V -j oe -o "$folder" -m a -l select=1:ncpus=1:mem=4gb \
    -l walltime=01:00:00 <<JOB
cd "\$PBS_O_WORKDIR" || exit 1
bash '$script' '$folder' $shards next
JOB
