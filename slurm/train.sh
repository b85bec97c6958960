#!/usr/bin/env bash
# Trains any deck. The size of the job stands on sbatch's line, before the script; `tessera slurm DECK` works it out and prints a script with it.
#   sbatch --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 --cpus-per-task=8 slurm/train.sh DECK [key=value ...]
#   sbatch --ntasks-per-node=2 --cpus-per-task=4 --time=02:00:00 slurm/train.sh inputs/quickstart.toml run.steps=50     # a node without GPUs
# slurm/train_70b.sh says how jobs go on.
#SBATCH --job-name=tessera
#SBATCH --nodes=1
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log
asked=false ended=false
trap 'asked=true' USR1
trap 'ended=true' TERM
here=$( (trap '' TERM; scontrol show job "$SLURM_JOB_ID") | sed -n '/^ *Command=/{s|^ *Command=\([^ ]*\)/[^ /]*\( .*\)\{0,1\}$|\1|p;q}')
[ -e "$here/common.sh" ] || here=slurm
. "$here/common.sh" || { echo "found no common.sh, neither beside this script nor in $PWD/slurm: submit from the repository's top folder" >&2; exit 6; }
# The deck is the first word, or what DECK names; then all words are overrides.
if [ -z "${DECK:-}" ]; then
  [ $# -gt 0 ] && [ "${1#*=}" = "$1" ] || die "usage: sbatch [--nodes=N --ntasks-per-node=N ...] slurm/train.sh DECK [key=value ...]"
  DECK=$1
  shift
fi
train "$DECK" "$@"
