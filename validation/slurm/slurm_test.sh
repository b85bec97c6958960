#!/usr/bin/env bash
# slurm/train_70b.sh and slurm/consolidate.sh on a throw-away cluster of four virtual nodes, as a user submits them:
#   a training job is signalled, saves, queues itself again, goes on and ends; the consolidation that depends on it then runs;
#   a deck with a typo ends the job with its status, once, and its consolidation never runs;
#   a node that fails costs the steps since the last checkpoint, and a job that may not be queued again saves and stops;
#   ranks that were started as worlds of one are refused, and the cause is named.
# usage: slurm_test.sh TESSERA
set -uo pipefail
cd "$(dirname "$0")/../.."
TESSERA=$(realpath "${1:?which tessera}")
export TESSERA PATH=$PATH:/usr/sbin:/sbin

skip() { echo "SKIPPED: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "a throw-away Slurm cluster needs root"
for program in slurmctld slurmd sbatch srun scontrol unshare; do
  command -v $program >/dev/null || skip "$program is not installed (scripts/setup installs slurm-wlm)"
done
unshare --mount --uts true 2>/dev/null || skip "this machine does not allow mount namespaces (a container without CAP_SYS_ADMIN?)"
mountpoint -q /sys/fs/cgroup || skip "nothing is mounted on /sys/fs/cgroup, which slurmd wants"
[ -x "$TESSERA" ] || { echo "FAIL: $TESSERA is not built"; exit 1; }

# A job that runs this test must not lend it its own settings.
unset ${!SLURM_@} ${!SBATCH_@} ${!SRUN_@} DECK
work=$(mktemp -d)
failed=0
tear_down() {
  [ -z "${LOCAL_CLUSTER_DIR:-}" ] || slurm/local_cluster stop || failed=1
  if [ $failed = 0 ]; then rm -rf "$work"; else echo "the logs are in $work"; fi
}
trap tear_down EXIT
trap 'echo "FAIL: stopped by a signal"; failed=1; exit 1' TERM INT

# check WHAT COMMAND...: goes on after a failure, so that one run shows all of them.
check() {
  local what=$1
  shift
  if "$@" >"$work/check.log" 2>&1; then echo "ok: $what"; else echo "FAIL: $what [$*]"; sed 's/^/    /' "$work/check.log"; failed=1; fi
}
# wait_for COMMAND...: until it succeeds. The bound is against hangs alone: no case passes or fails by how fast the machine is.
wait_for() {
  local end=$((SECONDS + 300))
  until "$@"; do [ $SECONDS -lt $end ] || return 1; sleep 0.1; done
}
give_up() {
  echo "FAIL: $*"
  tail -n 40 "$work"/*.log
  [ -z "${LOCAL_CLUSTER_DIR:-}" ] || slurm/local_cluster log 15
  failed=1
  exit 1
}
job_field() { scontrol show job "$1" | grep -oE "(^| )$2=[^ ]*" | cut -d= -f2-; }
ended() { case "$(job_field "$1" JobState)" in COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL) ;; *) return 1 ;; esac; }
queued_again() { [ "$(job_field "$1" JobState)" = PENDING ]; }
steps_of() { grep '"loss"' "$1/metrics.jsonl" 2>/dev/null | sed -E 's/.*"step": *([0-9]+).*/\1/'; }
has_steps() { [ "$(steps_of "$1" | wc -l)" -ge "$2" ]; }

last_step() { steps_of "$1" | tail -n 1; }
# deck STEPS: what the jobs read at each of their starts. A run that a case meets alive has ENDLESS steps: the case stops it, however fast it is.
ENDLESS=1000000000
deck() { sed "s/^steps = .*/steps = $1/" validation/slurm/small.toml >"$work/deck.toml"; }

# submit NAME [OVERRIDE...]: the sbatch line of a user with a smaller cluster and a smaller deck; sets `job`.
submit() {
  local name=$1
  shift
  job=$(DECK=$work/deck.toml sbatch --parsable --nodes=4 --ntasks-per-node=1 --gpus-per-node=1 --cpus-per-task=1 --output="$work/$name.log" \
    slurm/train_70b.sh data.train="$work/data/train.h5" run.output_dir="$work/$name" "$@") || give_up "sbatch refused $name"
}
consolidate_after() {  # JOB NAME
  consolidation=$(sbatch --parsable --dependency=afterok:"$1" --output="$work/$2-consolidate.log" \
    slurm/consolidate.sh "$work/$2" "$work/$2-weights") || give_up "sbatch refused the consolidation of $2"
}

# 1. Data and the cluster.
for ((i = 0; i < 2000; i++)); do echo "Line $i: four nodes, one world, and each rank a shard of it."; done >"$work/text.txt"
"$TESSERA" tokenize --tokenizer byte "$work/text.txt" "$work/data" >"$work/tokenize.log" 2>&1 || give_up "tokenize"
cluster=$(NODES=4 slurm/local_cluster start) || give_up "the cluster did not start"
eval "$cluster"
deck $ENDLESS

# 2. Worlds of one are refused (the cluster's default, like many a site's, is no MPI at all).
srun --mpi=none --nodes=2 --ntasks=4 --output="$work/singletons.log" "$TESSERA" train validation/slurm/small.toml \
  data.train="$work/data/train.h5" run.output_dir="$work/singletons" >"$work/singletons.srun.log" 2>&1
status=$?
check "worlds of one end with status 6, not $status" [ $status = 6 ]
check "worlds of one are told of --mpi=pmi2" grep -q -- "--mpi=pmi2" "$work/singletons.log"
check "worlds of one train nothing" [ ! -e "$work/singletons/metrics.jsonl" ]

# 3. Train on four nodes, be signalled, queue again, go on, end; then consolidate. The partition is closed meanwhile, so that the next start
# comes when the deck says how many steps remain.
submit run
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

# 4. Beside it: a deck with a typo.
submit typo optimizer.learning_rat=1e-3
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

# 5. A node loses power; Slurm, told so at once and not after its time limits, queues the job again. Then stop for good.
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

[ $failed = 0 ] || { tail -n 30 "$work"/*.log; }
echo "slurm jobs: $SECONDS s"
exit $failed
