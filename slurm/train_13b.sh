#!/usr/bin/env bash
# Trains the Llama-13B shape on 4 nodes of 8 GPUs (inputs/train_13b.toml). slurm/train_70b.sh says how jobs go on.
#   sbatch slurm/train_13b.sh run.output_dir=runs/13b
#SBATCH --job-name=tessera
#SBATCH --nodes=4
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
asked=false ended=false
trap 'asked=true' USR1
trap 'ended=true' TERM
here=$( (trap '' TERM; scontrol show job "$SLURM_JOB_ID") | sed -n '/^ *Command=/{s|^ *Command=\([^ ]*\)/[^ /]*\( .*\)\{0,1\}$|\1|p;q}')
[ -e "$here/common.sh" ] || here=slurm
. "$here/common.sh" || { echo "found no common.sh, neither beside this script nor in $PWD/slurm: submit from the repository's top folder" >&2; exit 6; }
train inputs/train_13b.toml "$@"
