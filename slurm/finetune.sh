#!/usr/bin/env bash
# Tunes Llama-3.1 8B Instruct on conversations, on 4 GPUs of a node (inputs/finetune_8b.toml). slurm/train_70b.sh says how jobs go on.
#   sbatch slurm/finetune.sh
#   sbatch slurm/finetune.sh lora.rank=16 lora.alpha=32 optimizer.learning_rate=2e-4 run.output_dir=runs/finetune_8b_lora     # adapters alone
#SBATCH --job-name=tessera
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=8
#SBATCH --mem-per-gpu=64G
#SBATCH --time=12:00:00
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
train inputs/finetune_8b.toml "$@"
