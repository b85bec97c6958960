#!/usr/bin/env bash
# Ranks of four virtual nodes that stop, end, sleep or never come: the others notice, and say which rank of which host it is.
# usage: ranks_test.sh TESSERA [pmi2|pmix]
set -uo pipefail
. "$(dirname "$0")/cluster.sh"
start_cluster
export UCX_TLS=^cma  # virtual nodes could read each other's memory, and UCX aborts who reads a dead rank's; between machines nothing can

# launch NAME [OVERRIDE...]: a step of four ranks, one a node; sets `step`, the process of srun.
launch() {
  local name=$1
  shift
  srun --mpi="$mpi" --wait=2 --job-name="$name" --nodes=4 --ntasks-per-node=1 --cpus-per-task=1 "$TESSERA" train "$work/deck.toml" \
    data.train="$work/data/train.h5" run.output_dir="$work/$name" "$@" >"$work/$name.log" 2>&1 &
  step=$!
}
# rank_process NAME HOST: the rank of a run on a virtual node.
rank_process() {
  local process
  for process in $(pgrep -f "run.output_dir=$work/$1( |$)"); do
    if [ "$(readlink "/proc/$process/exe")" = "$TESSERA" ] && grep -qzx "SLURMD_NODENAME=$2" "/proc/$process/environ" 2>/dev/null; then
      echo "$process"
      return
    fi
  done
}
running() { [ -n "$(rank_process "$1" n1)$(rank_process "$1" n2)$(rank_process "$1" n3)$(rank_process "$1" n4)" ]; }
over() { ! running "$1" && ! kill -0 $step 2>/dev/null; }
# ends NAME: the step ends, no rank is left, and the three ranks that nothing was done to say why once and end as lost. (Of the fourth srun has the status
# of the signal that killed it.)
ends() {
  wait_for over "$1" || give_up "the ranks of $1 did not end"
  wait $step
  check "the other ranks of $1 end with status 76" [ "$(grep -c 'srun: error: .*Exited with exit code 76' "$work/$1.log")" = 3 ]
  check "$1 says why once" [ "$(grep -c 'tessera: .*error: ' "$work/$1.log")" = 1 ]
}
stamp='^[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}'

# 1. A rank is killed on another node. A collective may wait for an hour: what notices is the watch.
launch killed topology.collective_timeout=1h
wait_for has_steps "$work/killed" 3 || give_up "the first run did not reach step 3"
kill -KILL "$(rank_process killed n3)"
ends killed
check "the lost rank and its host are named" grep -Eq "error: the process of rank 2 on n3 has ended" "$work/killed.log"
check "the line has time, host and rank" grep -Eq "$stamp (n[1-4]): tessera: rank [0-3] on \1: error: " "$work/killed.log"
check "the banner has the map of ranks" grep -Eq "$stamp n1: ranks +0 on n1, 1 on n2, 2 on n3, 3 on n4" "$work/killed.log"
check "steps have time and host" grep -Eq "$stamp n1: step +3/" "$work/killed.log"

# 2. A rank is stopped.
launch stopped topology.collective_timeout=4s
wait_for has_steps "$work/stopped" 3 || give_up "the second run did not reach step 3"
kill -STOP "$(rank_process stopped n2)"
ends stopped
check "the stopped rank and its host are named" grep -Eq "^  rank 1 on n2 does not answer: it is stopped" "$work/stopped.log"
check "who waits is named" grep -Eq "error: waited .*; ranks? .* waits? there, for:" "$work/stopped.log"

# 3. The whole job is suspended for longer than that.
launch suspended topology.collective_timeout=4s
wait_for has_steps "$work/suspended" 3 || give_up "the third run did not reach step 3"
job=$(squeue -h -o %A -n suspended)
scontrol suspend "$job"
sleep 6  # time itself is what is tested
before=$(steps_of "$work/suspended" | wc -l)
scontrol resume "$job"
wait_for has_steps "$work/suspended" $((before + 3)) || give_up "the run did not go on after it was suspended"
kill -USR1 "$(rank_process suspended n4)"
wait_for over suspended || give_up "the third run did not stop"
wait $step
status=$?
check "a suspended run goes on, and stops with status 75, not $status" [ $status = 75 ]

# 4. Two ranks on each of two nodes: shared memory inside them, and the bits of MPI alone.
for path in auto never; do
  srun --mpi="$mpi" --wait=2 --nodes=2 --ntasks-per-node=2 --cpus-per-task=1 "$TESSERA" train "$work/deck.toml" data.train="$work/data/train.h5" \
    run.output_dir="$work/nodes-$path" topology.hierarchical=$path run.steps=4 learning_rate.warmup_steps=1 batch.global=4 batch.sequence_length=16 zero.stage=3 \
    zero.param_persistence_threshold=0 model.width=128 model.ff_width=256 >"$work/nodes-$path.log" 2>&1
  check "a run of two ranks a node ends well ($path)" [ $? = 0 ]
done
check "ranks of a node share memory" grep -q "collectives by shared memory inside 2 nodes, mpi between" "$work/nodes-auto.log"
check "which the deck can forbid" grep -q "collectives by mpi" "$work/nodes-never.log"
losses_of() { grep -o '"loss": [^,]*, "grad_norm": [^,]*' "$work/nodes-$1/metrics.jsonl"; }
check "four steps have the same losses and norms" [ "$(losses_of auto | wc -l)" = 4 -a "$(losses_of auto)" = "$(losses_of never)" ]

# 5. A rank is another program.
cat >"$work/programs" <<END
0-2 $TESSERA train $work/deck.toml data.train=$work/data/train.h5 run.output_dir=$work/never topology.start_timeout=6s
3 sleep 3600
END
srun --mpi="$mpi" --wait=1 --nodes=4 --ntasks-per-node=1 --cpus-per-task=1 --multi-prog "$work/programs" >"$work/never.log" 2>&1
status=$?
check "a launch that never becomes a world does not train (status $status)" [ ! -e "$work/never/metrics.jsonl" ]
check "who is missing is said, and from where" grep -q "of 4 ranks 3 has not come; ranks 0 on n1, 1 on n2, 2 on n3 are here; nobody has come from n4" "$work/never.log"
check "nothing is left of the wait" [ -z "$(find "$work" -name '.tessera-start-*')" ]

finish
