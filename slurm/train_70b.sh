#!/usr/bin/env bash
# Trains the Llama-3-70B shape: 8 nodes x 8 GPUs, one rank per GPU. Submit from the repository's top folder:
#   sbatch slurm/train_70b.sh
#   sbatch slurm/train_70b.sh optimizer.learning_rate=1e-4 run.output_dir=runs/70b     overrides of the deck
#   DECK=inputs/mine.toml sbatch --nodes=4 slurm/train_70b.sh                          another deck, another size
# Five minutes before the time limit Slurm signals this script; the ranks save and leave with status 75, and the job puts itself back into
# the queue, where it goes on from the checkpoint. It ends with 0 when the run is done, and with tessera's status when it failed.
#   scancel --batch --signal=USR1 JOB                                          save now and go on in a later slot
#   scontrol update JobId=JOB Requeue=0; scancel --batch --signal=USR1 JOB     save now and stop
#SBATCH --job-name=tessera
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log
set -uo pipefail
. slurm/common.sh || { echo "submit from the repository's top folder" >&2; exit 6; }

tessera=$(find_tessera) || exit
deck=${DECK:-inputs/train_70b.toml}
[ -r "$deck" ] || die "cannot read the deck $deck (DECK names it, relative to $PWD)"

# USR1 is passed on to all ranks. TERM comes when somebody cancels the job or Slurm takes its nodes: then Slurm decides what is next, and
# srun's status means nothing (it may be 0).
child='' signalled=false cancelled=false
forward() { signalled=true; say "USR1: the ranks save their state"; [ -z "$child" ] || kill -USR1 "$child"; }
trap forward USR1
trap 'signalled=true cancelled=true' TERM

say "job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)): $SLURM_NTASKS ranks on $SLURM_JOB_NUM_NODES nodes, $tessera train $deck $*"
# pmi2 by name: with a site's other default every rank could be a world of its own. --wait ends what one lost rank leaves behind;
# --kill-on-bad-exit would kill ranks that are leaving with 75 a moment after the first.
srun --mpi=pmi2 --wait=30 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" "$tessera" train "$deck" "$@" &
child=$!
while :; do
  signalled=false
  wait "$child"
  status=$?
  $signalled || break  # else a signal ended `wait`, not srun
done

if $cancelled && [ $status -ne 75 ]; then
  say "the job was cancelled or lost a node (status $status); the next start goes on from the last checkpoint"
  exit 143
fi
case $status in
  0) say "the run is done" ;;
  75)
    if $cancelled; then
      say "the state is saved; the job was cancelled or its nodes are needed, so it does not queue itself"
    elif scontrol requeue "$SLURM_JOB_ID"; then
      say "the state is saved; the job is queued again and will go on from the checkpoint"
    else
      say "the state is saved, and Slurm does not queue the job again; the same sbatch line goes on from the checkpoint"
    fi ;;
  *) say "tessera ended with status $status (docs/operations.md has the table); not queued again" ;;
esac
exit $status
