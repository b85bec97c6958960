#!/usr/bin/env bash
# Compares the nodes of a job and what each rank reaches of them, before a run has to (tessera preflight). It ends with its status.
#   sbatch --nodes=8 slurm/preflight.sh inputs/train_70b.toml
#SBATCH --job-name=tessera-preflight
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=00:15:00
#SBATCH --output=slurm-%j.log
asked=false ended=false
trap 'asked=true' USR1
trap 'ended=true' TERM
here=$( (trap '' TERM; scontrol show job "$SLURM_JOB_ID") | sed -n '/^ *Command=/{s|^ *Command=\([^ ]*\)/[^ /]*\( .*\)\{0,1\}$|\1|p;q}')
[ -e "$here/common.sh" ] || here=slurm
. "$here/common.sh" || { echo "found no common.sh, neither beside this script nor in $PWD/slurm: submit from the repository's top folder" >&2; exit 6; }
tessera=$(find_tessera) || exit
start_ranks "$tessera" preflight "$@"
exit "$status"
