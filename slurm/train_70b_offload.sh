#!/usr/bin/env bash
# Trains a model on one node whose GPUs have no room for its state: 8 ranks, all of the node's memory, optimizer and parameters on the host
# (inputs/finetune_70b_offload.toml) or on local disks (inputs/infinity_175b.toml). slurm/train_70b.sh says how jobs go on.
#   sbatch slurm/train_70b_offload.sh run.resume=runs/70b/checkpoints/step-00050000
#   DECK=inputs/infinity_175b.toml sbatch slurm/train_70b_offload.sh zero.offload_optimizer.nvme_path=/local0:/local1
#SBATCH --job-name=tessera
#SBATCH --nodes=1
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
# Registered buffers of disks count as locked memory: as much as the site allows.
ulimit -l unlimited 2>/dev/null || ulimit -S -l "$(ulimit -H -l)"
train inputs/finetune_70b_offload.toml "$@"
