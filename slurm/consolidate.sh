#!/usr/bin/env bash
# Writes the weights of a run's newest checkpoint as Hugging Face safetensors. It streams: its memory does not grow with the model.
#   sbatch slurm/consolidate.sh RUN_DIR OUT [options of tessera consolidate]
#   sbatch --nodes=4 slurm/consolidate.sh RUN_DIR OUT                          # a rank a node; --ntasks-per-node=2: two
# Several ranks share the files of safetensors, so more of them than files have nothing to do (--max-file-bytes makes more files). A job that was ended
# goes on where it was: give the same line again.
# After a training job, once it has ended well, however often it was queued again:
#   JOB=$(sbatch --parsable slurm/train_70b.sh run.output_dir=runs/70b)
#   sbatch --dependency=afterok:$JOB slurm/consolidate.sh runs/70b out/70b --dtype bf16
#SBATCH --job-name=tessera-consolidate
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --mem-per-cpu=2G
#SBATCH --time=12:00:00
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log
asked=false ended=false
trap 'asked=true' USR1
trap 'ended=true' TERM
here=$( (trap '' TERM; scontrol show job "$SLURM_JOB_ID") | sed -n '/^ *Command=/{s|^ *Command=\([^ ]*\)/[^ /]*\( .*\)\{0,1\}$|\1|p;q}')
[ -e "$here/common.sh" ] || here=slurm
. "$here/common.sh" || { echo "found no common.sh, neither beside this script nor in $PWD/slurm: submit from the repository's top folder" >&2; exit 6; }
[ $# -ge 2 ] || die "usage: sbatch [--dependency=afterok:JOB] slurm/consolidate.sh RUN_DIR OUT [--format safetensors|hdf5] [--dtype fp32|bf16]"
run=$1 out=$2
shift 2
tessera=$(find_tessera) || exit
[ -e "$run/checkpoints/latest" ] || { say "$run holds no checkpoints/latest: is it the run's folder?" >&2; exit 4; }

ranks=${SLURM_NTASKS:-1}
say "job $job: $tessera consolidate $run/checkpoints/latest $out $*"
if [ "$ranks" = 1 ] && [ -z "${TESSERA_CONTAINER:-}" ]; then
  "$tessera" consolidate "$run/checkpoints/latest" "$out" "$@"
  status=$?
else
  say "$ranks ranks on $SLURM_JOB_NUM_NODES nodes share the files"
  name_report
  record=$base.ends TESSERA_LOST_TRIES=3 TESSERA_LOST_PAUSE=0  # of a run: here the cause alone counts
  export TESSERA_STATUS_FILE=$report
  rm -f "$report"
  start_ranks "$tessera" consolidate "$run/checkpoints/latest" "$out" "$@"
  ask_program "$tessera"
  rm -f "$report"
fi
[ $status -eq 0 ] && say "$out is written" || say "tessera ended with status $status (docs/operations.md has the table)"
exit $status
