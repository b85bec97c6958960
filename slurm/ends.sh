# Sourced by the job scripts of every scheduler, and by local.sh: starts the ranks, and does what follows an end of them. The program says what an end means
# and what follows (`tessera ends`), by the rules of `tessera supervise`. Each scheduler gives the verbs
#   launch PROGRAM...     the ranks, in the foreground
#   queue_again SECONDS   the job starts again, no sooner than in so many seconds, without the nodes of `barred`; fails where that is refused
#   why_it_ends           says why the scheduler ends this job; fails where it does not
#   can_go_without NODE   whether a start without the node, and those of `barred`, has nodes enough
#   submitted_at          when the job was submitted (2026-01-31T12:00:00), where that is known
# and the variables `start`, the number of this start; `base`, beside which stands what is told of the job; `log` and `log_from`, what it prints and
# the byte at which this start begins, where there is such a file; `launcher`; and `go_on_by`, how a user lets it go on.

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

# ask_program PROGRAM: what the end of this start means, and what follows. Sets `status`, the cause; `next` (done, ended, again or give-up), and of it
# `what`, `pause`, `given_up` and `suspects`; and `notes`, for the record. TERM, which comes to the whole job when it is to end, must not end the question.
ask_program() {
  local options=(--report "$report" --launcher-status "$status" --start "${start:-1}" --log "${log:-}" --log-from "${log_from:-1}"
    --tries "$TESSERA_LOST_TRIES" --pause "$TESSERA_LOST_PAUSE") answer word value
  [ "$launcher" != srun ] || options+=(--srun)
  ! $asked || options+=(--asked)
  ! $ended || options+=(--ended)
  next='' what='' pause=0 given_up='' suspects=() notes=()
  answer=$(trap '' TERM; unset TESSERA_STATUS_FILE; folder=$(dirname "$report")
    if [ "$folder" = "$PWD" ]; then enter_container; else enter_container "$folder"; fi
    exec timeout -s KILL 60 "${alone[@]}" "$1" ends "$record" "${options[@]}") || answer=
  while read -r word value; do
    case $word in
      status) status=$value ;;
      say) say "$value" ;;
      note) notes+=("$value") ;;
      what) what=$value ;;
      suspect) suspects+=("$value") ;;
      pause) pause=$value ;;
      given-up) given_up=$value ;;
      next) next=$value ;;
    esac
  done <<<"$answer"
  [ -n "$next" ] || do_without_program "$1"
}

# The program cannot start here, or does not answer: its file system may be gone, or a container's. What it would say is not known, but a run that
# reported how it ended, and can go on, is not left alone. Twice in a row it is: then nobody counts starts that come no further.
do_without_program() {
  say "$1 does not say what follows this end"
  status=$(sed -n 's/^status //p' "$report" 2>/dev/null | grep . || echo "$status")
  what="tessera ended with status $status"
  notes=("start ${start:-1}: status $status, saved $(sed -n 's/^saved //p' "$report" 2>/dev/null | grep . || echo nothing)" "without the program")
  next=give-up given_up=$status pause=$TESSERA_LOST_PAUSE
  case $status in
    0) next='done' ;;
    75 | 76) [[ $(tail -n 1 "$record" 2>/dev/null) = *" without the program" ]] || next=again ;;
  esac
}

note() { echo "$(printf '%(%F %T)T' -1) $*" >>"$record"; }

# bar_nodes NODE...: those at which two starts ended. Sets `barred`, and adds what is said of them to `what`.
bar_nodes() {
  local node
  for node; do
    if can_go_without "$node"; then
      barred+=${barred:+,}$node
      note "left out $node"
      what+="; $node, at which two starts ended, is left out from now on"
    else
      what+="; two starts ended at $node, and without it there are too few nodes"
    fi
  done
}

# The job ends with the status and is not queued again; nor does one that waits behind it start the same again.
give_up() {
  status=$given_up
  say "$what. The job is not queued again (status $status); $go_on_by"
  note "given up: status $status"
}

# After 75 or 76: queues the job again, unless the scheduler ends it or the program gives it up.
go_on_later() {
  local why from_when=
  if why=$(why_it_ends); then
    say "$what; the job does not queue itself: $why. The next start resumes from the last checkpoint"
    return
  fi
  if [ "$next" = give-up ]; then
    give_up
    return
  fi
  bar_nodes "${suspects[@]}"
  # Once it is queued a scheduler ends what the script has started: what it says then is ready before, and said by the shell itself.
  [ "$pause" = 0 ] || from_when=" for $pause s from now"
  if queue_again "$pause"; then
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
# table), and `queued`. After 75 (asked to stop) and 76 (lost a rank or a node, or waited too long) the job queues itself again; a fault that would repeat
# does not. Beside the job's log stands NAME.ends, a line for each start: how it ended, and what it saved; and at which node.
run_start() {
  local record=$base.ends what next pause given_up suspects notes line
  : "${TESSERA_LOST_TRIES:=3}" "${TESSERA_LOST_PAUSE:=120}"
  queued=false
  if refused_by_chain; then return; fi
  export TESSERA_STATUS_FILE=$report
  rm -f "$report" "$report.saved"
  if $asked; then
    say "USR1 came before the ranks were started"
    status=75
  else
    start_ranks "$@"
  fi
  ask_program "$1"
  rm -f "$report" "$report.saved"
  for line in "${notes[@]}"; do note "$line"; done

  case $next:$status in
    done:*) say "$what" ;;
    ended:*) say "$scheduler ended the ranks: $(why_it_ends). The next start resumes from the last checkpoint" ;;
    *:75 | *:76) go_on_later ;;
    *)
      say "$what. The job is not queued again"
      note "given up: status $status" ;;
  esac
}
