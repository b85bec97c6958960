#!/usr/bin/env bash
# tessera supervise inside one job on a throw-away cluster: a rank is killed and starts again on its node; then a node dies, and the spare one takes its
# place, while Slurm knows of nothing. No checkpoint is saved before the end: both starts go on from the memory of the nodes that are left, which each
# node of the cluster has for itself.
# usage: supervise_test.sh TESSERA [pmi2|pmix]
set -uo pipefail
. "$(dirname "$0")/cluster.sh"
start_cluster NODES=4 NODE_TIMEOUT=3600
export TESSERA_SPARES=1
options=(--no-kill)
submit spare checkpoint.every=0 checkpoint.neighbour_every=1 topology.collective_timeout=10s
at_work() { grep -q "supervise: start $1 is running" "$work/spare.log" || ended "$job"; }
wait_for has_steps "$work/spare" 8 || give_up "the run did not reach step 8"
check "three ranks run, on as many nodes" grep -q "supervise: start 1: 3 ranks on 3 nodes" "$work/spare.log"

# 1. One of the ranks.
kill -KILL "$(pgrep -o -f "^$TESSERA train .*run.output_dir=$work/spare")"
wait_for at_work 2 || give_up "the run did not start again after a rank was killed"
check "a killed rank starts again on its node" grep -q "the node answers; it starts again at once\|all nodes answer; it starts again at once" "$work/spare.log"
check "and goes on from memory" grep -q "resumed from in-memory replicas at step .* no checkpoint was read (there is none)" "$work/spare.log"

# 2. A node.
going=$(last_step "$work/spare")
wait_for has_steps "$work/spare" $((going + 8)) || give_up "the second start did not go on"
slurm/local_cluster kill-node n3
wait_for at_work 3 || give_up "the run did not start again after a node was lost"
grep "supervise: start [23] is running" "$work/spare.log"
check "the spare takes its place" grep -q "n3 does not answer; n4 replaces n3" "$work/spare.log"
check "it goes on from the memory of the others" [ "$(grep -c "resumed from in-memory replicas" "$work/spare.log")" = 2 ]
check "which came to the spare" grep -q "were sent from the nodes that had them to those that need them" "$work/spare.log"
check "the record says so" grep -q " left out n3" "$work/spare.ends"
scontrol update JobId="$job" Requeue=0
scancel --batch --signal=USR1 "$job"
wait_for grep -q "its state is saved, and Slurm does not queue the job again" "$work/spare.log" || give_up "the third start did not save and end"
check "its state is saved" grep -q "start 3: status 75, saved [0-9]" "$work/spare.ends"
check "the job has started once" [ "$(grep -c "slurm: job $job, start " "$work/spare.log")" = 1 ]
check "no step is lost or done twice" diff <(seq 1 "$(last_step "$work/spare")") <(steps_of "$work/spare")
finish
