# Sourced by the job scripts of Slurm: the verbs of ends.sh in Slurm's words, and run_ranks. A job script remembers signals before it sources this, since
# a site's set-up may take its time:
#   asked=false ended=false; trap 'asked=true' USR1; trap 'ended=true' TERM
# and sets `here` to the folder of this file.
set -uo pipefail
scheduler=Slurm launcher=srun
. "$here/start.sh" && . "$here/ends.sh" || exit 6
load_site slurm
# A task of an array has a number of its own beside that of the array, which stands for all its tasks.
job=$SLURM_JOB_ID
[ -z "${SLURM_ARRAY_TASK_ID:-}" ] || job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
start=$((${SLURM_RESTART_COUNT:-0} + 1))
go_on_by="the same sbatch line, or scontrol requeue $job, resumes from the last checkpoint"
more_time="sbatch --time" other_notice="sbatch --signal=B:USR1@SECONDS"

# What Slurm says of this job. TERM, which comes to the whole job when it is to end, must not end the question.
job_field() { (trap '' TERM; scontrol show job "$job" | grep -oE "(^| )$1=[^ ]*" | head -n 1 | cut -d= -f2- | grep -vFx '(null)'); }
submitted_at() { job_field SubmitTime; }

# srun_has OPTION: newer versions know more.
srun_has() { grep -q -e "$1" <<<"$(srun --help 2>/dev/null)"; }

launch() {
  local options=() per_node
  if [ -n "${TESSERA_SPARES:-}" ] && [ "${2:-}" = train ]; then
    [ -z "${TESSERA_CONTAINER:-}" ] || die "TESSERA_SPARES reserves nodes for tessera supervise, which starts no containers: leave one of the two out"
    per_node=$((SLURM_NTASKS / SLURM_JOB_NUM_NODES))
    exec "$1" supervise -n $((SLURM_NTASKS - TESSERA_SPARES * per_node)) --spares "$TESSERA_SPARES" -- "${@:2}"
  fi
  options=(--export=ALL --mpi="${SLURM_MPI_TYPE:-pmi2}" --wait=30 --kill-on-bad-exit=0 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}")
  # --export: what sbatch's --export kept from this script is kept from it alone. The ranks need what the site's settings and this file set.
  # pmi2 (or what the site's settings say) by name: with another default every rank could be a world of its own. --wait ends what one lost rank leaves
  # behind; --kill-on-bad-exit, by a site's default, would kill ranks that are leaving with 75 a moment after the first. So would, from Slurm 24.05 on, a
  # site's OOMKillStep where memory of one rank ran out.
  if srun_has --oom-kill-step; then options+=(--oom-kill-step=0); fi
  enter_container
  # TESSERA_SRUN: a site's own options, --cpu-bind or --network among them.
  exec srun "${options[@]}" ${TESSERA_SRUN:-} "${container_options[@]}" "${around[@]}" "$@"
}

# Slurm ends all of the job at once, so this ignores TERM.
queue_again() {
  local changes=()
  [ "$1" = 0 ] || changes+=(StartTime=now+"$1")
  [ -z "$barred" ] || changes+=(ExcNodeList="$(all_barred)")
  (
    trap '' TERM
    scontrol requeue "$job" && { [ ${#changes[@]} = 0 ] || scontrol update JobId="$job" "${changes[@]}"; }
  )
}
all_barred() { local before; before=$(job_field ExcNodeList); echo "${before:+$before,}$barred"; }

# Nodes that are down may come back, but nobody knows when.
can_go_without() {
  local left
  [ -z "$(job_field ReqNodeList)" ] || return 1
  left=$(sinfo -h -N -p "$(job_field Partition)" -o '%N %t' 2>/dev/null | awk '$2 !~ /down|drain|drng|fail|maint|unk|\*/ { print $1 }' | sort -u |
    grep -cvFx -f <(scontrol show hostnames "$(all_barred | sed 's/,$//'),$1" | sed '/^$/d'))
  [ "${left:-0}" -ge "$SLURM_JOB_NUM_NODES" ]
}

# Why Slurm ends this job, where it does: then it is not for the script to queue it again.
why_it_ends() {
  local restarts
  if [ "$(job_field JobState)" = RUNNING ] && ! $ended; then return 1; fi
  restarts=$(job_field Restarts)
  if [ "$(job_field Reason)" = TimeLimit ]; then
    echo "the time limit came before the ranks had ended; --signal=B:USR1@SECONDS gives them more time to save"
  elif [ "${restarts:-0}" -gt "${SLURM_RESTART_COUNT:-0}" ]; then
    echo "Slurm takes its nodes and has queued it again"
  else
    echo "it was cancelled"
  fi
}

# A notice that was given on sbatch's command line is not to be seen from here.
notice() {
  local notice=${SBATCH_SIGNAL:-$(grep -m 1 -oE '^#SBATCH +--signal=[^ ]+' "$0")}
  grep -oE '@[0-9]+$' <<<"$notice" | tr -d @
}
limit() { job_field TimeLimit | awk -F '[-:]' '/^[0-9:-]+$/ { print $NF + 60 * $(NF - 1) + 3600 * $(NF - 2) + (NF > 3 ? 86400 * $1 : 0) }'; }

# Sets `base`, beside which stands what is told of this job, `log` and `log_from`, and `report`, in which its ranks say how they end.
name_report() {
  base=$(job_field StdOut)
  log=$base log_from=1
  [ ! -f "$log" ] || log_from=$(($(stat -c %s "$log") + 1))
  if [ -f "$base" ]; then base=${base%.log}; else base=$PWD/slurm-$SLURM_JOB_ID; fi
  report=$base.status
  # Two tasks of an array, or two jobs of a chain, may have one log.
  [ "$job" = "$SLURM_JOB_ID" ] || report=$base.$job.status
}

# run_ranks PROGRAM [ARGUMENT...]: runs it on all ranks and ends the job (run_start).
run_ranks() {
  name_report
  say "job $job, start $start: $SLURM_NTASKS ranks on $SLURM_JOB_NUM_NODES nodes, $*"
  warn_of_limits "$(limit)" "$(notice)" "$@"
  trap forward USR1
  run_start "$@"
  exit "$status"
}

# train DECK [OVERRIDE...]: what most job scripts do. DECK in the environment comes before the script's own deck.
train() {
  local tessera deck
  tessera=$(find_tessera) || exit
  deck=$(find_deck "$1") || exit
  run_ranks "$tessera" train "$deck" "${@:2}"
}
