#!/usr/bin/env bash
# slurm/train_70b.sh, slurm/train_70b_offload.sh, slurm/train_175b_3d.sh and slurm/consolidate.sh on a throw-away cluster of four virtual nodes, as a user submits them:
#   a training job is signalled, saves, queues itself again, goes on and ends; the consolidation that depends on it then runs;
#   a deck with a typo ends the job with its status, once, and its consolidation never runs;
#   a node that fails costs the steps since the last checkpoint, and a job that may not be queued again saves and stops;
#   ranks that were started as worlds of one are refused, and the cause is named;
#   what cmake --install has written is submitted from another folder, with nothing else; and so is what tessera slurm prints.
# usage: slurm_test.sh TESSERA [pmi2|pmix]
set -uo pipefail
. "$(dirname "$0")/cluster.sh"
start_cluster

# 1. Worlds of one are refused (the cluster's default, like many a site's, is no MPI at all).
srun --mpi=none --nodes=2 --ntasks=4 --output="$work/singletons.log" "$TESSERA" train validation/slurm/small.toml \
  data.train="$work/data/train.h5" run.output_dir="$work/singletons" >"$work/singletons.srun.log" 2>&1
status=$?
check "worlds of one end with status 6, not $status" [ $status = 6 ]
check "worlds of one are told of --mpi=pmi2" grep -q -- "--mpi=pmi2" "$work/singletons.log"
check "worlds of one train nothing" [ ! -e "$work/singletons/metrics.jsonl" ]

# 2. Train on four nodes, be signalled, queue again, go on, end; then consolidate. The partition is closed meanwhile, so that the next start
# comes when the deck says how many steps remain. This job is the one of models that do not fit, with its state on a disk.
script=slurm/train_70b_offload.sh submit run zero.offload_optimizer.device=nvme zero.offload_param.device=nvme \
  zero.offload_optimizer.nvme_path="$work"
train=$job
consolidate_after "$train" run
weights=$consolidation
wait_for has_steps "$work/run" 3 || give_up "the run did not reach step 3"
scontrol update PartitionName=main State=DOWN
scancel --batch --signal=USR1 "$train"
wait_for grep -q "queued again" "$work/run.log" || give_up "the run did not save and queue itself after USR1"
wait_for queued_again "$train" || give_up "the run is not queued again"
check "the state was saved" test -e "$work/run/checkpoints/latest/checkpoint.h5"
check "the consolidation waits while the run is queued again" [ "$(job_field "$weights" JobState)" = PENDING ]
first=$(last_step "$work/run")
steps=$((first + 20))
deck $steps
scontrol update PartitionName=main State=UP

# 3. Beside it: a deck with a typo.
script=slurm/train_175b_3d.sh submit typo optimizer.learning_rat=1e-3
typo=$job
consolidate_after "$typo" typo
wait_for ended "$typo" || give_up "the job with a typo did not end"
check "a typo ends the job with status 2" [ "$(job_field "$typo" ExitCode)" = 2:0 ]
check "a typo's job was started once" [ "$(job_field "$typo" Restarts)" = 0 ]
check "a typo is named" grep -q "optimizer.learning_rat" "$work/typo.log"
wait_for ended "$consolidation"
check "nothing is consolidated after a failure" [ "$(job_field "$consolidation" JobState)" = CANCELLED ]

wait_for ended "$train" || give_up "the run did not end after its second start"
check "the run ended well" [ "$(job_field "$train" JobState)" = COMPLETED ]
check "the run was started twice" [ "$(job_field "$train" Restarts)" = 1 ]
check "the second start went on after step $first" grep -q "at step $first of $steps" "$work/run.log"
check "every step was done once" diff <(seq 1 "$steps") <(steps_of "$work/run")
check "the log holds both starts" [ "$(grep -c ': 4 ranks on 4 nodes' "$work/run.log")" = 2 ]
wait_for ended "$weights" || give_up "the consolidation did not end"
check "the consolidation ended well" [ "$(job_field "$weights" JobState)" = COMPLETED ]
check "weights are written" test -s "$work/run-weights/model.safetensors"
check "their configuration is written" test -s "$work/run-weights/config.json"

# The same by two ranks on each of two nodes, which share the files; and a fault of theirs, which is the job's.
several() {  # NAME [OPTION...]
  local name=$1
  shift
  weights=$(sbatch --parsable --nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --output="$work/$name.log" slurm/consolidate.sh "$work/run" "$work/$name" "$@") ||
    give_up "sbatch refused $name"
  wait_for ended "$weights" || give_up "$name did not end"
}
several shared --max-file-bytes 20000
check "ranks of several nodes consolidate" [ "$(job_field "$weights" JobState)" = COMPLETED ]
check "they are four" grep -q "4 ranks on 2 nodes share the files" "$work/shared.log"
"$TESSERA" consolidate "$work/run/checkpoints/latest" "$work/alone" --max-file-bytes 20000 >"$work/alone.log" 2>&1
check "they write several files" test -e "$work/shared/model.safetensors.index.json"
check "they write what one process writes" diff -r "$work/alone" "$work/shared"
several narrow --tensor no.such.tensor
check "a fault of all ranks is the job's status" [ "$(job_field "$weights" ExitCode)" = 2:0 ]
check "nothing is left beside the log" [ ! -e "$work/narrow.status" ]

# 4. A node loses power; Slurm, told so at once and not after its time limits, queues the job again. Then stop for good.
deck $ENDLESS
submit stopped checkpoint.every=5
wait_for has_steps "$work/stopped" 8 || give_up "the third run did not reach step 8"
slurm/local_cluster kill-node n3
scontrol update NodeName=n3 State=DOWN Reason=test
wait_for queued_again "$job" || give_up "Slurm did not queue the third run again after a node failed"
before=$(last_step "$work/stopped")
slurm/local_cluster start-node n3
scontrol update NodeName=n3 State=RESUME
wait_for has_steps "$work/stopped" $((before + 2)) || give_up "the third run did not go on after a node failed"
check "no step is lost or done twice when a node fails" diff <(seq 1 "$before") <(steps_of "$work/stopped" | head -n "$before")
scontrol update JobId="$job" Requeue=0
scancel --batch --signal=USR1 "$job"
wait_for ended "$job" || give_up "the third run did not stop"
check "a run that may not be queued again ends with status 75" [ "$(job_field "$job" ExitCode)" = 75:0 ]
check "its state was saved" test -e "$work/stopped/checkpoints/latest/checkpoint.h5"

# 5. The installed scripts, settings and program, from a folder that holds nothing.
cmake --install "$(dirname "$TESSERA")" --prefix "$work/prefix" >"$work/install.log" 2>&1 || give_up "cmake --install"
mkdir "$work/elsewhere"
deck 5
job=$(cd "$work/elsewhere" && env -u TESSERA DECK="$work/deck.toml" sbatch --parsable --nodes=2 --ntasks-per-node=1 --gpus-per-node=1 --cpus-per-task=1 \
  --output="$work/installed.log" "$work/prefix/share/tessera/slurm/train_70b.sh" data.train="$work/data/train.h5" run.output_dir=run) ||
  give_up "sbatch refused the installed script"
wait_for ended "$job" || give_up "the installed job did not end"
check "the installed script runs the installed program" grep -q "ranks on 2 nodes, $work/prefix/bin/tessera train" "$work/installed.log"
check "it trains in the folder where it was submitted" diff <(seq 1 5) <(steps_of "$work/elsewhere/run")

# 6. What tessera slurm prints is a job.
"$TESSERA" slurm "$work/deck.toml" --ranks 4 --ranks-per-node 2 --threads 1 data.train="$work/data/train.h5" run.output_dir="$work/printed" >"$work/printed.sh" 2>"$work/printed.err" ||
  give_up "tessera slurm: $(cat "$work/printed.err")"
job=$(sbatch --parsable --time=10 --output="$work/printed.log" "$work/printed.sh" run.seed=2) || give_up "sbatch refused what tessera slurm printed"
wait_for ended "$job" || give_up "the printed job did not end"
check "a printed job runs on its nodes" grep -q ": 4 ranks on 2 nodes, .* run.seed=2$" "$work/printed.log"
check "and trains" diff <(seq 1 5) <(steps_of "$work/printed")

finish
