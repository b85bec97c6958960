# Sourced by the tests of the job scripts, with their own arguments: a throw-away cluster of four virtual nodes, the data and deck of its
# jobs, and the words in which their cases are written. Where a machine cannot hold a cluster the test ends with 77 and says why.
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

# A job that runs this test must not lend it its own settings, but for the way in which srun and MPI find each other, which CTest names.
mpi=${2:-pmi2}
unset ${!SLURM_@} ${!SBATCH_@} ${!SRUN_@} DECK
[ "$mpi" = pmi2 ] || export SLURM_MPI_TYPE=$mpi
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

# submit NAME [OVERRIDE...]: the sbatch line of a user with a smaller cluster and a smaller deck, and `options` of sbatch; sets `job`.
options=()
submit() {
  local name=$1
  shift
  job=$(DECK=$work/deck.toml sbatch --parsable --nodes=4 --ntasks-per-node=1 --gpus-per-node=1 --cpus-per-task=1 --output="$work/$name.log" \
    "${options[@]}" "${script:-slurm/train_70b.sh}" data.train="$work/data/train.h5" run.output_dir="$work/$name" "$@") || give_up "sbatch refused $name"
}
consolidate_after() {  # JOB NAME
  consolidation=$(sbatch --parsable --dependency=afterok:"$1" --output="$work/$2-consolidate.log" \
    slurm/consolidate.sh "$work/$2" "$work/$2-weights") || give_up "sbatch refused the consolidation of $2"
}

# start_cluster [NAME=VALUE...]: the data, the deck and the cluster. Settings of slurm/local_cluster may be given.
start_cluster() {
  local i cluster
  for ((i = 0; i < 2000; i++)); do echo "Line $i: four nodes, one world, and each rank a shard of it."; done >"$work/text.txt"
  "$TESSERA" tokenize --tokenizer byte "$work/text.txt" "$work/data" >"$work/tokenize.log" 2>&1 || give_up "tokenize"
  cluster=$(env NODES=4 "$@" slurm/local_cluster start) || give_up "the cluster did not start"
  eval "$cluster"
  deck $ENDLESS
}
# finish: the test's last line.
finish() {
  [ $failed = 0 ] || tail -n 30 "$work"/*.log
  echo "${0##*/}: $SECONDS s"
  exit $failed
}
