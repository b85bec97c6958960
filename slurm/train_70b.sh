#!/usr/bin/env bash
# Trains the Llama-3-70B shape: 8 nodes x 8 GPUs, one rank per GPU. Submit from the repository's top folder, or, where Tessera is installed, from any
# folder: sbatch PREFIX/share/tessera/slurm/train_70b.sh. Paths on the line are relative to that folder.
#   sbatch slurm/train_70b.sh
#   sbatch slurm/train_70b.sh optimizer.learning_rate=1e-4 run.output_dir=runs/70b     # overrides of the deck
#   DECK=inputs/mine.toml sbatch --nodes=4 slurm/train_70b.sh                          # another deck, another size
# Five minutes before the time limit Slurm signals this script; the ranks save and leave with status 75, and the job puts itself back into
# the queue, where it goes on from the checkpoint. So it does when a rank or a node is lost, after a pause (TESSERA_LOST_PAUSE=120 seconds, twice as
# long each time), without a node at which two starts ended, and no more after TESSERA_LOST_TRIES=3 starts in a row that saved no newer step (status 79).
# It ends with 0 when the run is done, and with tessera's status when it failed.
#   scancel --batch --signal=USR1 JOB                                          # save now and go on later
#   scontrol update JobId=JOB Requeue=0; scancel --batch --signal=USR1 JOB     # save now and stop
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
# USR1 is for all ranks. TERM comes when somebody cancels the job or Slurm takes its nodes: then Slurm decides what is next. Both are remembered
# from here on.
asked=false ended=false
trap 'asked=true' USR1
trap 'ended=true' TERM
# sbatch runs a copy of this script. What belongs to it lies beside the script itself, whose place Slurm knows, or in slurm/ here.
here=$( (trap '' TERM; scontrol show job "$SLURM_JOB_ID") | sed -n '/^ *Command=/{s|^ *Command=\([^ ]*\)/[^ /]*\( .*\)\{0,1\}$|\1|p;q}')
[ -e "$here/common.sh" ] || here=slurm
. "$here/common.sh" || { echo "found no common.sh, neither beside this script nor in $PWD/slurm: submit from the repository's top folder" >&2; exit 6; }
train inputs/train_70b.toml "$@"
