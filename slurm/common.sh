# Sourced by the job scripts: says things with the job's name, sets up the site, finds the program, and starts ranks that save and leave when they
# are asked to (run_ranks). Such a script remembers signals before it sources this, since a site's set-up may take its time:
#   asked=false ended=false; trap 'asked=true' USR1; trap 'ended=true' TERM
# and sets `here` to the folder of this file.

say() { printf '%(%F %T)T slurm: %s\n' -1 "$*"; }  # by the shell alone: Slurm may be ending what it starts
die() { say "$*" >&2; exit 6; }

# The settings of the folder where sbatch was called, else of the site.
for settings in slurm/site.sh "$here/site.sh"; do
  if [ -e "$settings" ]; then . "$settings"; break; fi
done

# TESSERA names the program; else the one that these scripts were installed with; else the one on PATH; else the one built here.
find_tessera() {
  local program installed=
  [ "$here" = "${here%/share/tessera/slurm}" ] || installed=${here%/share/tessera/slurm}/bin/tessera
  for program in "${TESSERA:-}" "$installed" "$(command -v tessera)" "$PWD/build/host/tessera"; do
    if [ -n "$program" ] && [ -x "$program" ]; then echo "$program"; return; fi
    [ -z "$program" ] || [ "$program" != "${TESSERA:-}" ] || die "TESSERA=$program is no program that can be run"
  done
  die "found no tessera: set TESSERA to it, put it on PATH, or build it here with scripts/quickstart"
}

# What Slurm says of this job. TERM, which comes to the whole job when it is to end, must not end the question.
job_field() { (trap '' TERM; scontrol show job "$SLURM_JOB_ID") | grep -oE "(^| )$1=[^ ]*" | head -n 1 | cut -d= -f2-; }

# A job that is not given more time than Slurm's notice would be asked to save as soon as it began, at every start. A notice that was given on
# sbatch's command line is not to be seen from here.
warn_of_short_limit() {
  local notice limit
  notice=${SBATCH_SIGNAL:-$(grep -m 1 -oE '^#SBATCH +--signal=[^ ]+' "$0")}
  notice=$(grep -oE '@[0-9]+$' <<<"$notice" | tr -d @)
  limit=$(job_field TimeLimit | awk -F '[-:]' '/^[0-9:-]+$/ { print $NF + 60 * $(NF - 1) + 3600 * $(NF - 2) + (NF > 3 ? 86400 * $1 : 0) }')
  [ -z "$notice" ] || [ -z "$limit" ] || [ "$limit" -gt $((notice + 60)) ] || say "the time limit of $limit s leaves no time to train: Slurm asks the" \
    "ranks to save $notice s before it, and up to a minute earlier. Give more (sbatch --time), or less notice (sbatch --signal=B:USR1@SECONDS)"
}

# USR1 asks the ranks to save and leave. Slurm drops a signal to ranks that it is still starting, so it is sent until they have left.
child='' repeater=''
forward() {
  asked=true
  say "USR1: the ranks save their state"
  if [ -n "$child" ] && [ -z "$repeater" ]; then
    (while kill -USR1 "$child" 2>/dev/null; do sleep 10; done) &
    repeater=$!
  fi
}

# Sets `status` to what srun returns.
start_ranks() {
  # --export: what sbatch's --export kept from this script is kept from it alone. The ranks need what the site's settings and this file set.
  # pmi2 (or what the site's settings say) by name: with another default every rank could be a world of its own. --wait ends what one lost rank leaves behind;
  # --kill-on-bad-exit would kill ranks that are leaving with 75 a moment after the first.
  srun --export=ALL --mpi="${SLURM_MPI_TYPE:-pmi2}" --wait=30 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" "$@" &
  child=$!
  if $asked; then forward; fi  # it came while there was no child to pass it on to
  # A signal ends `wait`, not srun.
  until wait "$child"; ! kill -0 "$child" 2>/dev/null; do :; done
  wait "$child"
  status=$?
  [ -z "$repeater" ] || kill "$repeater" 2>/dev/null
}

# words_of_srun LOG BYTE: of the tasks that srun names in what the log has from there, the first that ended otherwise than by saving or over another's
# loss: "n3: task 2: Killed". A rank that is killed has no words of its own, and its MPI may end the others before they have any.
words_of_srun() {
  tail -c "+$2" "$1" 2>/dev/null | sed -nE 's/^([0-9T: .-]* )?srun: error: (.*: tasks? [0-9,-]+: .*)/\2/p' |
    grep -vE ': Exited with exit code (75|76)$' | head -n 1
}

# Sets `status` to the cause of the end and `saved` to the newest step that was saved. srun returns the signal by which it ended the ranks
# where one of them had a fault or was lost, so what the first of them reported counts. Where none could speak, all were killed or none came up;
# what they have saved was told at once.
find_cause() {
  ls "${report%/*}" >/dev/null  # NFS may remember that the file was not there
  saved=$(sed -n 's/^saved //p' "$report.saved" 2>/dev/null)
  : "${saved:=nothing}"
  if [ -s "$report" ]; then
    status=$(sed -n 's/^status //p' "$report")
    saved=$(sed -n 's/^saved //p' "$report")
    return
  fi
  case $status in
    0 | [2-8] | 75 | 76 | 126 | 127) ;;
    *)
      say "no rank could say how it ended, and srun returned $status"
      if $ended; then status=143; elif $asked; then status=75; else status=76; fi ;;
  esac
}

# The job goes back into the queue, and starts no sooner than in so many seconds. Slurm ends all of the job at once, so this ignores TERM.
queue_again() {
  (
    trap '' TERM
    scontrol requeue "$SLURM_JOB_ID" && { [ "$1" = 0 ] || scontrol update JobId="$SLURM_JOB_ID" StartTime=now+"$1"; }
  )
}

# Why Slurm ends this job, where it does: then it is not for the script to queue it again.
why_slurm_ends_it() {
  local restarts
  if [ "$(job_field JobState)" = RUNNING ] && ! $ended; then return 1; fi
  restarts=$(job_field Restarts)
  if [ "$(job_field Reason)" = TimeLimit ]; then
    echo "the time limit came before the ranks had left; --signal=B:USR1@SECONDS gives them more time to save"
  elif [ "${restarts:-0}" -gt "${SLURM_RESTART_COUNT:-0}" ]; then
    echo "Slurm takes its nodes and has queued it again"
  else
    echo "it was cancelled"
  fi
}

# After 75 or 76: queues the job again, unless Slurm ends it or start after start has come no further.
go_on_later() {
  local why tries pause=0 from_when=
  if why=$(why_slurm_ends_it); then
    say "$what; the job does not queue itself: $why. The next start goes on from the last checkpoint"
    return
  fi
  # Starts in a row, up to this one, that came no further: they saved nothing, or no newer step than the last that saved.
  tries=$(awk '/ saved / { n = $NF != "nothing" && (last == "" || $NF + 0 > last) ? 0 : n + 1 } $NF ~ /^[0-9]+$/ { last = $NF + 0 }
    / given up$/ { n = 0 } END { print n + 0 }' "$record")
  if [ "$tries" -ge "$TESSERA_LOST_TRIES" ]; then
    say "$what; the last $tries starts saved no newer step, so the job is not queued again. What they said stands above; the same sbatch line goes on" \
      "from the last checkpoint, and so does scontrol requeue $SLURM_JOB_ID"
    echo "$(date '+%F %T') given up" >>"$record"
    return
  fi
  # Slurm may take minutes to see that a node is gone: each try in a row waits twice as long as the one before.
  [ "$status" != 76 ] || pause=$((TESSERA_LOST_PAUSE << (tries > 1 ? tries - 1 : 0)))
  # Once it is queued Slurm ends what the script has started: what it says then is ready before, and said by the shell itself.
  [ $pause = 0 ] || from_when=" for $pause s from now"
  if queue_again $pause; then
    say "$what; the job is queued again$from_when and will go on from the last checkpoint"
  else
    say "$what, and Slurm does not queue the job again; the same sbatch line goes on from the last checkpoint"
  fi
}

# Sets `base`, beside which stands what is told of this job, `log` and `log_from`, the byte of it at which this start begins, and `report`, in which its ranks say how they end.
name_report() {
  base=$(job_field StdOut)
  log=$base log_from=1
  [ ! -f "$log" ] || log_from=$(($(stat -c %s "$log") + 1))
  if [ -f "$base" ]; then base=${base%.log}; else base=$PWD/slurm-$SLURM_JOB_ID; fi
  report=$base.status
  export TESSERA_STATUS_FILE=$report
  rm -f "$report" "$report.saved"
}

# run_ranks PROGRAM [ARGUMENT...]: runs it on all ranks and ends the job, with 0 when the run is done, else with the status of its cause
# (docs/operations.md has the table). After 75 (asked to stop) and 76 (lost a rank, a node or patience) the job queues itself again; a fault
# that would repeat does not. Beside the job's log stands NAME.ends, a line for each start: how it ended, and what it saved.
run_ranks() {
  local base log log_from report record status saved what words
  : "${TESSERA_LOST_TRIES:=3}" "${TESSERA_LOST_PAUSE:=120}"
  name_report
  record=$base.ends
  say "job $SLURM_JOB_ID, start $((${SLURM_RESTART_COUNT:-0} + 1)): $SLURM_NTASKS ranks on $SLURM_JOB_NUM_NODES nodes, $*"
  warn_of_short_limit

  trap forward USR1
  if $asked; then
    say "USR1 came before there were ranks"
    status=75 saved=nothing
  else
    start_ranks "$@"
    find_cause
  fi
  rm -f "$report" "$report.saved"
  echo "$(date '+%F %T') start $((${SLURM_RESTART_COUNT:-0} + 1)): status $status, saved $saved" >>"$record"

  case $status in
    0) say "the run is done" ;;
    75)
      if [ "$saved" = nothing ]; then what="the ranks have left with nothing to save"; else what="the state is saved"; fi
      go_on_later ;;
    76)
      what="the run lost a rank, a node or patience"
      words=$(words_of_srun "$log" "$log_from")
      [ -z "$words" ] || what+=" (srun: $words)"
      go_on_later ;;
    143) say "Slurm ended the ranks: $(why_slurm_ends_it). The next start goes on from the last checkpoint" ;;
    *) say "tessera ended with status $status (docs/operations.md has the table); not queued again" ;;
  esac
  exit "$status"
}
