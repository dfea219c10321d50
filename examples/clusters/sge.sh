#!/bin/bash
# A planned run on Sun Grid Engine and its descendants. After `onedraw plan ... --shards 200 --out run`:
#
#     bash sge.sh run 200
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
array=$(qsub -terse -N onedraw-work -t "1-$shards" -cwd -V -S /bin/bash -j y -o "$folder" -l h_rt=04:00:00,h_vmem=2G \
<<JOB
$onedraw work '$folder' --shard \$SGE_TASK_ID --max-seconds 14000 --no-progress
JOB
) || exit 1
qsub -terse -N onedraw-step -hold_jid "${array%%.*}" -cwd -V -S /bin/bash -j y -o "$folder" -m a \
    -l h_rt=01:00:00,h_vmem=4G <<JOB
bash '$script' '$folder' $shards next
JOB
