#!/usr/bin/env bash
# Trains on this machine, with no scheduler: starts the ranks, and starts them again after a lost rank by the rules of the job scripts (TESSERA_LOST_PAUSE,
# TESSERA_LOST_TRIES; statuses 78 and 79). For a workstation, or a node that is yours.
#   slurm/local.sh 4 inputs/quickstart.toml run.steps=50          # 4 ranks
#   kill -USR1 PID                                                # save now and start again
#   kill PID, or Ctrl-C                                           # save now and stop, with status 75
# TESSERA_MPIEXEC="mpiexec --oversubscribe" is another launcher, with its options. Beside the work stands local-DECK.ends, a line a start.
asked=false ended=false
trap 'asked=true' USR1
trap 'ended=true asked=true' TERM INT HUP
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
set -uo pipefail
scheduler=local.sh launcher=mpiexec
. "$here/start.sh" && . "$here/ends.sh" || exit 6
load_site slurm
go_on_by="the same line resumes from the last checkpoint"

[[ ${1:-} =~ ^[1-9][0-9]*$ ]] && [ $# -ge 2 ] || die "usage: slurm/local.sh RANKS DECK [KEY=VALUE...]"
ranks=$1
tessera=$(find_tessera) || exit
deck=$(DECK=$2 find_deck "$2") || exit
enter_container
base=local-$(basename "$deck" .toml) log='' log_from=1
report=$PWD/$base.$$.status

launch() { exec ${TESSERA_MPIEXEC:-mpiexec} -n "$ranks" "${around[@]}" "$@"; }
can_go_without() { false; }  # there is one node
submitted_at() { :; }
why_it_ends() {
  if $ended; then
    echo "this script was asked to stop"
  elif [ "$status" = 75 ] && ! $asked; then
    echo "a rank was asked to stop"
  else
    return 1
  fi
}
# The next start is this script's own next round.
queue_again() { again_in=$1; }

trap forward USR1
trap 'ended=true; forward' TERM INT HUP
start=0
while start=$((start + 1)); do
  say "start $start: $ranks ranks, $tessera train $deck ${*:3}"
  run_start "$tessera" train "$deck" "${@:3}"
  $queued || exit "$status"
  asked=false
  nap_here=$SECONDS
  until $ended || [ $((SECONDS - nap_here)) -ge "$again_in" ]; do sleep 1; done
  ! $ended || exit 75
done
