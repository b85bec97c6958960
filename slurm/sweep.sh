#!/usr/bin/env bash
# Trains one deck with each line of a file of overrides, a line a task of a job array, each in a folder of its own. slurm/train_70b.sh says how jobs go on.
#   printf 'optimizer.learning_rate=%s\n' 1e-4 2e-4 4e-4 >rates.txt
#   SWEEP=rates.txt DECK=inputs/train_7b.toml sbatch --array=1-3%2 slurm/sweep.sh          # line 1 in runs/rates-1, and so on; two at a time
# What follows the script is for all of them, and comes before the line.
#SBATCH --job-name=tessera
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=8
#SBATCH --mem=0
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%A_%a.log
#SBATCH --array=1
asked=false ended=false
trap 'asked=true' USR1
trap 'ended=true' TERM
here=$( (trap '' TERM; scontrol show job "$SLURM_JOB_ID") | sed -n '/^ *Command=/{s|^ *Command=\([^ ]*\)/[^ /]*\( .*\)\{0,1\}$|\1|p;q}')
[ -e "$here/common.sh" ] || here=slurm
. "$here/common.sh" || { echo "found no common.sh, neither beside this script nor in $PWD/slurm: submit from the repository's top folder" >&2; exit 6; }
[ -n "${SWEEP:-}" ] && [ -r "$SWEEP" ] || die "SWEEP=${SWEEP:-} must name a file of overrides, a line a run (relative to $PWD)"
line=${SLURM_ARRAY_TASK_ID:?is not set: submit this script with --array=1-LINES}
read -ra overrides < <(grep -v '^ *\(#\|$\)' "$SWEEP" | sed -n "${line}p")
[ ${#overrides[@]} -gt 0 ] || die "$SWEEP has no line $line: submit with --array=1-$(grep -cv '^ *\(#\|$\)' "$SWEEP")"
name=${SWEEP##*/}
train inputs/train_7b.toml "$@" run.output_dir="runs/${name%.*}-$line" "${overrides[@]}"
