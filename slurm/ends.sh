# Sourced by the job scripts of every scheduler, and by local.sh: what an end of the ranks means, and what follows. Each scheduler gives the verbs
#   launch PROGRAM...     the ranks, in the foreground
#   queue_again SECONDS   the job starts again, no sooner than in so many seconds, without the nodes of `barred`; fails where that is refused
#   why_it_ends           says why the scheduler ends this job; fails where it does not
#   can_go_without NODE   whether a start without the node, and those of `barred`, has nodes enough
#   submitted_at          when the job was submitted (2026-01-31T12:00:00), where that is known
# and the variables `start`, the number of this start; `base`, beside which stands what is told of the job; `log` and `log_from`, what it prints and
# the byte at which this start begins, where there is such a file; `trusted`, a pattern of statuses that the launcher returns as the ranks' own; and
# `go_on_by`, how a user lets it go on.

asked=${asked:-false} ended=${ended:-false} child='' repeater='' barred='' excluded=''

# USR1 asks the ranks to save and leave. A launcher drops a signal to ranks that it is still starting, so it is sent until they have left.
forward() {
  asked=true
  say "USR1: the ranks save their state"
  if [ -n "$child" ] && [ -z "$repeater" ]; then
    (while kill -USR1 "$child" 2>/dev/null; do nap 10; done) &
    repeater=$!
  fi
}

# Sets `status` to what the launcher returns.
start_ranks() {
  repeater=
  launch "$@" &
  child=$!
  if $asked; then forward; fi  # it came while there was no child to pass it on to
  # A signal ends `wait`, not the launcher.
  until wait "$child"; ! kill -0 "$child" 2>/dev/null; do :; done
  wait "$child"
  status=$?
  child=
  [ -z "$repeater" ] || kill "$repeater" 2>/dev/null
}

# Sets `status` to the cause of the end and `saved` to the newest step that was saved. A launcher may return the signal by which it ended the ranks
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
  if ! [[ $status =~ ^($trusted)$ ]]; then
    say "no rank reported how it ended, and $launcher returned $status"
    if $ended; then status=143; elif $asked; then status=75; else status=76; fi
  fi
}

# words_of_launcher: of the tasks that srun names in what the log has of this start, the first that ended otherwise than by saving or over another's
# loss: "n3: task 2: Killed". A rank that is killed has no words of its own, and its MPI may end the others before they have any.
words_of_launcher() {
  this_start | sed -nE 's/^([0-9T: .-]* )?srun: error: (.*: tasks? [0-9,-]+: .*|Node failure on .*)/\2/p' |
    grep -vE ': Exited with exit code (75|76)$' | head -n 1
}
this_start() { [ -z "${log:-}" ] || tail -c "+$log_from" "$log" 2>/dev/null; }

# lost_node: "NODE RANK WORDS" of the node at which a lost run ended, where one alone is named: by srun, else by the ranks that were left.
lost_node() {
  local words
  words=$(words_of_launcher | sed -nE -e 's/^([^][, ]+): tasks? ([0-9,-]+): (.*)/\1 \2 \3/p' -e 's/^Node failure on ([^][, ]+)$/\1 - node failure/p')
  [ -n "$words" ] || words=$(this_start | sed -nE -e 's/.*warning: rank ([0-9]+) on ([^][,; ]+) was lost .*/\2 \1 ended/p' \
    -e 's/.*process of rank ([0-9]+) on ([^][,; ]+) has ended.*/\2 \1 ended/p' \
    -e 's/^ *rank ([0-9]+) on ([^][,; ]+) does not answer.*/\2 \1 no answer/p' -e 's/.*nobody has come from ([^][,; ]+)$/\1 - did not come/p' | head -n 1)
  echo "$words"
}

note() { echo "$(printf '%(%F %T)T' -1) $*" >>"$record"; }

# Starts in a row, up to this one, that came no further: they saved nothing, or no newer step than the last that saved.
starts_without_progress() {
  awk '/: status .* saved / { n = $NF != "nothing" && (last == "" || $NF + 0 > last) ? 0 : n + 1; if ($NF ~ /^[0-9]+$/) last = $NF + 0 }
    / given up/ { n = 0 } END { print n + 0 }' "$record"
}

# goes_with_rank TRIES: whether the last two starts, of at least two that came no further, lost the same rank in the same way on two nodes: then the fault is
# not the nodes', and would be met again.
goes_with_rank() {
  [ "$1" -ge 2 ] && awk '/: status .* saved / { node = rank[1]; way = rank[2]; rank[1] = rank[2] = "" }
    / lost [^ ]+ [0-9]+ / { match($0, / lost [^ ]+ /); split(substr($0, RSTART + 1, RLENGTH - 2), word, " ")
      rank[1] = word[2]; rank[2] = substr($0, RSTART + RLENGTH) }
    END { exit !(rank[1] != "" && way == rank[2] && node != rank[1]) }' "$record"
}

# bar_nodes: those at which two starts ended, since they were last left out. Sets `barred`, and adds what is said of them to `what`.
bar_nodes() {
  local node
  for node in $(awk '/ lost [^ ]+ / { match($0, / lost [^ ]+ /); split(substr($0, RSTART, RLENGTH), word, " "); lost[word[2]]++ }
    / left out / { lost[$NF] = -1e9 } END { for (node in lost) if (lost[node] >= 2) print node }' "$record"); do
    if can_go_without "$node"; then
      barred+=${barred:+,}$node
      note "left out $node"
      what+="; $node, at which two starts ended, is left out from now on"
    else
      what+="; two starts ended at $node, and without it there are too few nodes"
    fi
  done
}

# give_up STATUS WHY: the job ends with the status and is not queued again; nor does one that waits behind it start the same again.
give_up() {
  status=$1
  say "$2. The messages of the ranks are above; $go_on_by"
  note "given up: status $status"
}

# After 75 or 76: queues the job again, unless the scheduler ends it, the fault would repeat, or start after start has come no further.
go_on_later() {
  local why tries pause=0 from_when=
  if why=$(why_it_ends); then
    say "$what; the job does not queue itself: $why. The next start resumes from the last checkpoint"
    return
  fi
  tries=$(starts_without_progress)
  if [ "$status" = 76 ] && goes_with_rank "$tries"; then
    give_up 78 "$what; the last two starts lost the same rank in the same way on two nodes, so the fault would repeat and the job is not queued again (status 78)"
    return
  fi
  if [ "$tries" -ge "$TESSERA_LOST_TRIES" ]; then
    give_up 79 "$what; the last $tries starts saved no newer step, so the job is not queued again (status 79)"
    return
  fi
  [ "$status" != 76 ] || bar_nodes
  # A scheduler may take minutes to see that a node is gone: each try in a row waits twice as long as the one before. So does a run that is asked
  # to stop before it has saved anything new.
  if [ "$status" = 76 ]; then
    pause=$((TESSERA_LOST_PAUSE << (tries > 1 ? tries - 1 : 0)))
  elif [ "$tries" -gt 1 ]; then
    pause=$((TESSERA_LOST_PAUSE << (tries - 2)))
  fi
  [ $pause -le 3600 ] || pause=3600
  # Once it is queued a scheduler ends what the script has started: what it says then is ready before, and said by the shell itself.
  [ $pause = 0 ] || from_when=" for $pause s from now"
  if queue_again $pause; then
    queued=true
    say "$what; the job is queued again$from_when and will resume from the last checkpoint"
  else
    say "$what, and $scheduler does not queue the job again; $go_on_by"
  fi
}

# A job of a chain does not start again what the one before it has given up, unless somebody has submitted it since then.
refused_by_chain() {
  local last when
  [ "$start" = 1 ] && last=$(tail -n 1 "$record" 2>/dev/null) && [[ $last =~ ^(.*)\ given\ up:\ status\ ([0-9]+)$ ]] || return 1
  when=$(submitted_at)
  [ -n "$when" ] && [[ $when < ${BASH_REMATCH[1]/ /T} ]] || return 1
  status=${BASH_REMATCH[2]}
  say "the job before this one was given up with status $status after this one was submitted: nothing is started ($record). A job that is submitted now does start"
}

# saves_take PROGRAM train DECK [OVERRIDE...]: seconds of the longest of the last saves and of a step, of what earlier starts have written.
saves_take() {
  local word folder
  [ "${2:-}" = train ] && [ -r "${3:-}" ] || return 1
  folder=$(sed -nE 's/^ *output_dir *= *"([^"]*)".*/\1/p' "$3" | head -n 1)
  for word in "${@:4}"; do [ "${word#run.output_dir=}" = "$word" ] || folder=${word#run.output_dir=}; done
  tail -c 4000000 "${folder:-.}/metrics.jsonl" 2>/dev/null | awk '
    match($0, /"save_seconds": *[0-9.e+-]+/) { split(substr($0, RSTART, RLENGTH), of, ": *"); save[n++ % 3] = of[2] + 0 }
    match($0, /"seconds": *[0-9.e+-]+/) { split(substr($0, RSTART, RLENGTH), of, ": *"); step = of[2] + 0 }
    END { for (i in save) if (save[i] > most) most = save[i]; if (!n) exit 1; printf "%.0f\n", most + step + 0.5 }'
}

# warn_of_limits LIMIT NOTICE PROGRAM...: a job that is not given more time than the notice would be asked to save as soon as it began, at every start;
# and a notice that is shorter than a save costs the save. Seconds; empty where they are not known.
warn_of_limits() {
  local limit=$1 notice=$2 needed
  [ -n "$notice" ] || return 0
  [ -z "$limit" ] || [ "$limit" -gt $((notice + 60)) ] || say "the time limit of $limit s leaves no time to train: the ranks are asked to" \
    "save $notice s before it, and up to a minute earlier. Give more ($more_time), or less notice ($other_notice)"
  needed=$(saves_take "${@:3}") && [ "$needed" -gt "$notice" ] || return 0
  say "a save and the step before it took up to $needed s, but the ranks are asked to save $notice s before the time limit. A save at the limit may be" \
    "lost. Give more notice, at least $((needed + needed / 4 + 30)) s ($other_notice)"
}

# run_start PROGRAM [ARGUMENT...]: one start on all ranks. Sets `status`, 0 when the run is done, else that of its cause (docs/operations.md has the
# table), and `queued`. After 75 (asked to stop) and 76 (lost a rank or a node, or waited too long) the job queues itself again; a fault that would repeat does not.
# Beside the job's log stands NAME.ends, a line for each start: how it ended, and what it saved; and at which node.
run_start() {
  local record=$base.ends saved what words node
  : "${TESSERA_LOST_TRIES:=3}" "${TESSERA_LOST_PAUSE:=120}"
  queued=false
  if refused_by_chain; then return; fi
  export TESSERA_STATUS_FILE=$report
  rm -f "$report" "$report.saved"
  if $asked; then
    say "USR1 came before the ranks were started"
    status=75 saved=nothing
  else
    start_ranks "$@"
    find_cause
  fi
  rm -f "$report" "$report.saved"
  note "start $start: status $status, saved $saved"

  case $status in
    0) say "the run is done" ;;
    75)
      if [ "$saved" = nothing ]; then what="the ranks ended with nothing to save"; else what="the state is saved"; fi
      go_on_later ;;
    76)
      what="the run lost a rank or a node, or waited too long"
      words=$(words_of_launcher)
      [ -z "$words" ] || what+=" (srun: $words)"
      node=$(lost_node)
      [ -z "$node" ] || note "start $start: lost $node"
      go_on_later ;;
    143) say "$scheduler ended the ranks: $(why_it_ends). The next start resumes from the last checkpoint" ;;
    *)
      say "tessera ended with status $status (docs/operations.md has the table); not queued again"
      note "given up: status $status" ;;
  esac
}
