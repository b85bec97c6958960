#!/usr/bin/env bash
# Trains a model of 175 B parameters on 128 nodes of 8 GPUs, shared by tensor-parallel ranks inside a node and stages of a pipeline over nodes
# (inputs/train_175b_3d.toml). slurm/train_70b.sh says how jobs go on.
#   sbatch slurm/train_175b_3d.sh
#   sbatch --nodes=64 slurm/train_175b_3d.sh                       # half of the pipelines, the same batch; from a checkpoint of 128 nodes too
#   sbatch --nodes=8 slurm/train_175b_3d.sh batch.global=96        # one pipeline
# A node that is lost costs all pipelines the steps since the last checkpoint: a spare node in the partition lets the job start again at once.
#SBATCH --job-name=tessera
#SBATCH --nodes=128
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@600
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log
asked=false ended=false
trap 'asked=true' USR1
trap 'ended=true' TERM
here=$( (trap '' TERM; scontrol show job "$SLURM_JOB_ID") | sed -n '/^ *Command=/{s|^ *Command=\([^ ]*\)/[^ /]*\( .*\)\{0,1\}$|\1|p;q}')
[ -e "$here/common.sh" ] || here=slurm
. "$here/common.sh" || { echo "found no common.sh, neither beside this script nor in $PWD/slurm: submit from the repository's top folder" >&2; exit 6; }
train inputs/train_175b_3d.toml "$@"
