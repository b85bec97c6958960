# Sourced by the job scripts of PBS: the verbs of slurm/ends.sh in the words of PBS, and run_ranks. A job script remembers signals before it sources
# this, is in the folder where it was submitted, and sets `here` to the folder of this file.
set -uo pipefail
scheduler=PBS launcher=mpiexec
. "$here/../slurm/start.sh" && . "$here/../slurm/ends.sh" || exit 6
# PBS keeps what a job prints, and begins anew when it starts the job again. So this file has it, of all starts and of the jobs that follow.
base=${TESSERA_LOG:-$PWD/pbs-${PBS_JOBID%%.*}}
log=$base.log report=$base.status
exec >>"$log" 2>&1 </dev/null
log_from=$(($(stat -c %s "$log") + 1))
load_site pbs

# What PBS says of this job; it breaks long lines. TERM, which comes to the whole job when it is to end, must not end the question.
job_field() { (trap '' TERM; qstat -f "$PBS_JOBID" | sed -z 's/\n\t//g' | sed -nE "s/^ *$1 = //p" | head -n 1); }
start=$(job_field run_count)
: "${start:=1}"
go_on_by="the same qsub line, with -v TESSERA_LOG=$base, resumes from the last checkpoint"
more_time="qsub -l walltime" other_notice="TESSERA_NOTICE=SECONDS"

submitted_at() { local when; when=$(job_field ctime) && [ -n "$when" ] && date -d "$when" +%FT%T; }
limit() { job_field Resource_List.walltime | awk -F : '{ print $NF + 60 * $(NF - 1) + 3600 * $(NF - 2) }'; }

# Nodes: those of the job, without the ones that were left out as long as TESSERA_NODES remain (all, unless that is set: a job that asks for one more
# than it uses has one to spare). Ranks a node: TESSERA_PPN, else as often as PBS names a node.
nodes_without() { sort -u "$PBS_NODEFILE" | grep -vFx -f <(sed -n 's/.* left out //p' "$base.ends" 2>/dev/null; printf '%s\n' "$@"); }
choose_nodes() {
  local all good
  all=$(sort -u "$PBS_NODEFILE")
  wanted=${TESSERA_NODES:-$(wc -l <<<"$all")}
  ppn=${TESSERA_PPN:-$(($(wc -l <"$PBS_NODEFILE") / $(wc -l <<<"$all")))}
  good=$(nodes_without)
  [ "$(grep -c . <<<"$good")" -ge "$wanted" ] || good=$all
  hosts=$base.hosts
  head -n "$wanted" <<<"$good" >"$hosts"
  ranks=$((ppn * $(wc -l <"$hosts")))
}
can_go_without() { [ "$(nodes_without "$1" | grep -c .)" -ge "$wanted" ]; }

launch() { exec ${TESSERA_MPIEXEC:-mpiexec} -n "$ranks" --ppn "$ppn" --hostfile "$hosts" "${around[@]}" "$@"; }

# A job that may not start again (qalter -r n JOB) does not. Else another one like it follows this one; where a site takes none from its nodes,
# PBS is asked to start this one again, which many allow to operators alone.
queue_again() {
  local options=(-W depend=afterany:"$PBS_JOBID" -N "$(job_field Job_Name)") field value next
  [ "$(job_field Rerunable)" != False ] || return 1
  [ "$1" = 0 ] || options+=(-a "$(date -d "+$1 seconds" +%Y%m%d%H%M.%S)")
  [ -z "${PBS_O_QUEUE:-}" ] || options+=(-q "$PBS_O_QUEUE")
  value=$(job_field Account_Name)
  [ -z "$value" ] || options+=(-A "$value")
  for field in select walltime place filesystems; do
    value=$(job_field Resource_List.$field)
    [ -z "$value" ] || options+=(-l "$field=$value")
  done
  export TESSERA_LOG=$base
  # By name: qsub takes their values from here, whatever stands in them.
  options+=(-v "$(compgen -e | grep -E '^(TESSERA.*|DECK|OVERRIDES)$' | grep -vx TESSERA_STATUS_FILE | paste -sd ,)")
  if next=$(trap '' TERM; qsub "${options[@]}" "$here/train.pbs"); then
    say "job $next follows this one"
    return
  fi
  [ "$1" = 0 ] || { say "qsub is refused here: qrerun in $1 s"; sleep "$1"; }
  (trap '' TERM; qrerun "$PBS_JOBID")
}

# PBS does not say why it sends TERM.
why_it_ends() {
  $ended || return 1
  if [ -n "$limit" ] && [ $((SECONDS + 30)) -ge "$limit" ]; then
    echo "the walltime came before the ranks had ended; TESSERA_NOTICE=SECONDS gives them more time to save"
  elif [ "$(job_field Rerunable)" = False ]; then
    echo "it was deleted or preempted, and it may not start again (-r n)"
  else
    echo "it was deleted, or preempted, after which PBS itself starts it again (-r y)"
  fi
}

# A start that was killed with no time to say so, by a preemption or a node, has told what it saved.
tell_of_killed_start() {
  local saved=nothing
  [ "$start" -gt 1 ] && ! grep -q " start $((start - 1)): " "$base.ends" 2>/dev/null || return 0
  [ ! -e "$report.saved" ] || saved=$(sed -n 's/^saved //p' "$report.saved")
  record=$base.ends note "start $((start - 1)): status 143, saved $saved"
  say "start $((start - 1)) was killed by PBS; it had saved $saved"
}

# run_ranks PROGRAM [ARGUMENT...]: runs it on all ranks and ends the job (run_start). PBS gives no notice before its limit, so this script does: ranks
# are asked to save TESSERA_NOTICE seconds before it (300).
run_ranks() {
  local timer=
  limit=$(limit) notice=${TESSERA_NOTICE:-300}
  choose_nodes
  enter_container
  say "job $PBS_JOBID, start $start: $ranks ranks on $(wc -l <"$hosts") nodes, $*"
  tell_of_killed_start
  warn_of_limits "$limit" "$notice" "$@"
  trap forward USR1
  # TERM: the ranks save what they can in the time that PBS leaves them (kill_delay, 10 s where a site does not say more).
  trap 'ended=true; forward' TERM
  if [ -n "$limit" ]; then
    (nap $((limit - notice - SECONDS > 0 ? limit - notice - SECONDS : 0)); kill -USR1 $$) &
    timer=$!
  fi
  run_start "$@"
  [ -z "$timer" ] || kill "$timer" 2>/dev/null
  rm -f "$hosts"
  exit "$status"
}
