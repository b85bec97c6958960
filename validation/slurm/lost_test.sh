#!/usr/bin/env bash
# How slurm/train_70b.sh ends a job that Slurm itself would let fail, or start for ever, on a throw-away cluster of six virtual nodes:
#   a node that dies before Slurm notices costs the steps since the last checkpoint: the job queues itself again;
#   a run that loses ranks at every start is given up after the bound, and says so; a node at which two starts end is left out of the third;
#   a job of a chain goes on where the one before it was asked to stop;
#   USR1 while the site is set up, and before the ranks have begun, queues the job again with nothing lost;
#   a hard time limit is called one, and a time limit that leaves no time is said at the start.
# usage: lost_test.sh TESSERA [pmi2|pmix]
set -uo pipefail
. "$(dirname "$0")/cluster.sh"
start_cluster NODES=6 NODE_TIMEOUT=3600
program=$TESSERA
export TESSERA_LOST_PAUSE=1

# wrapper FILE: a program around tessera, from standard input, for ranks alone. SLURM_PROCID is the rank, SLURM_RESTART_COUNT is set from the second start on.
wrapper() {
  { echo '#!/usr/bin/env bash'; echo "[ \"\$1\" != ends ] || exec '$program' \"\$@\""; cat; } >"$work/$1"
  chmod +x "$work/$1"
  export TESSERA=$work/$1
}
starts_of() { grep -c ' ranks on [0-9]* nodes, ' "$work/$1.log"; }

# 1. The time limit of a job that nobody asks to save: a minute is the least that Slurm has, so it runs beside the others.
options=(--nodes=1 --nodelist=n5 --time=1 --signal=B:CONT@1)
submit limit
limit=$job
options=(--exclude=n5,n6)

# 2. A node dies, and the ranks' patience ends before Slurm's. The script gets a few variables alone; its ranks get its own as well.
options+=(--export=PATH,SLURM_CONF,TESSERA,TESSERA_LOST_PAUSE,DECK)
submit node checkpoint.every=5 topology.collective_timeout=10s
wait_for has_steps "$work/node" 8 || give_up "the run did not reach step 8"
slurm/local_cluster kill-node n3
wait_for grep -q "queued again" "$work/node.log" || give_up "the job did not queue itself after a node was lost"
before=$(last_step "$work/node")  # now that nobody goes on: only the next start comes further
check "the end is told as lost" grep -q "start 1: status 76, saved [0-9]" "$work/node.ends"
check "the job says so" grep -Eq "the run lost (a rank or a node, or waited too long|.*n[1-4].*); the job is queued again for 1 s from now" "$work/node.log"
slurm/local_cluster start-node n3
wait_for has_steps "$work/node" $((before + 8)) || give_up "the run did not go on after a node was lost"
check "no step is lost or done twice" diff <(seq 1 "$before") <(steps_of "$work/node" | head -n "$before")
scancel --batch --signal=USR1 "$job"
wait_for grep -q "start 2: status 75, saved [0-9]" "$work/node.ends" || give_up "the second start did not save"
# The script puts the job back into the queue meanwhile, which undoes a cancel that comes before it.
cancelled() { scancel "$1"; ended "$1"; }
wait_for cancelled "$job" || give_up "the job was not cancelled"
options=(--exclude=n5,n6)

# 3. Rank 2 is killed in the first steps of every start.
wrapper losing.sh <<END
log=$work/losing.log
if [ "\$SLURM_PROCID" != 2 ]; then exec "$program" "\$@"; fi
"$program" "\$@" &
until [ "\$(grep -c 'first step done' "\$log")" -gt "\${SLURM_RESTART_COUNT:-0}" ]; do sleep 0.1; done
kill -KILL \$!
wait \$!
END
TESSERA_LOST_TRIES=2 submit losing topology.collective_timeout=10s
wait_for ended "$job" || give_up "the run that loses rank 2 for ever did not end"
check "a run that makes no progress ends with status 79" [ "$(job_field "$job" ExitCode)" = 79:0 ]
check "it is tried as often as was said" [ "$(starts_of losing)" = 2 ]
check "the last line of its ends says so" grep -q "given up: status 79$" "$work/losing.ends"
check "both ends are written down" [ "$(grep -c 'status 76, saved nothing' "$work/losing.ends")" = 2 ]
check "it names the rank that had no words, at each start" [ "$(grep -cE 'the run lost rank 2 on n[1-4] \(' "$work/losing.log")" = 2 ]
check "it says why it gives up" grep -q "the last 2 starts saved no newer step: .* The job is not queued again (status 79)" "$work/losing.log"

# 4. USR1 before the ranks have begun: they wait for it, and it kills them as it would any program that has not come to its first line.
deck 5
wrapper early.sh <<END
if [ -z "\${SLURM_RESTART_COUNT:-}" ]; then
  [ "\$SLURM_PROCID" != 0 ] || scancel --batch --signal=USR1 "\$SLURM_JOB_ID"
  while :; do sleep 0.1; done
fi
exec "$program" "\$@"
END
submit early
early=$job
wait_for ended "$early" || give_up "the job that was signalled before its ranks began did not end"
check "USR1 before the ranks began: the job ends well" [ "$(job_field "$early" JobState)" = COMPLETED ]
check "USR1 before the ranks began: two starts" [ "$(starts_of early)" = 2 ]
check "USR1 before the ranks began: nothing to save" grep -q "start 1: status 75, saved nothing" "$work/early.ends"
check "the steps are done" diff <(seq 1 5) <(steps_of "$work/early")

# 5. USR1 while the site is set up, from a copy of the scripts whose site.sh sends it.
export TESSERA=$program
mkdir "$work/site"
cp -r slurm "$work/site"
echo '[ -n "${SLURM_RESTART_COUNT:-}" ] || kill -USR1 $$' >"$work/site/slurm/site.sh"
options+=(--chdir="$work/site")
submit site
wait_for ended "$job" || give_up "the job that was signalled while its site was set up did not end"
check "USR1 in site.sh: the job ends well" [ "$(job_field "$job" JobState)" = COMPLETED ]
check "USR1 in site.sh: it was queued again" grep -q "USR1 came before the ranks were started" "$work/site.log"
check "the steps are done" diff <(seq 1 5) <(steps_of "$work/site")

# 6. Less time than Slurm's notice. The command line's --signal keeps Slurm itself from sending USR1 here; the script sees its own line.
options=(--exclude=n5,n6 --time=5 --signal=B:CONT@1)
submit short optimizer.learning_rat=1e-3
wait_for ended "$job" || give_up "the job with a typo did not end"
check "a time limit without time to train is said" grep -q "the time limit of 300 s leaves no time to train" "$work/short.log"
check "and a longer one is not" bash -c '! grep -q "no time to train" "$1"' _ "$work/early.log"

# 7. A chain of two jobs that may not be queued again, with one log.
export TESSERA=$program
deck $ENDLESS
options=(--exclude=n5,n6 --no-requeue --dependency=singleton --job-name=chain --open-mode=append)
submit chain
before=$job
submit chain
wait_for has_steps "$work/chain" 3 || give_up "the first job of the chain did not reach step 3"
deck $(($(last_step "$work/chain") + 200))
scancel --batch --signal=USR1 "$before"
wait_for ended "$job" || give_up "the second job of the chain did not end"
check "the first job of the chain was asked to stop" [ "$(job_field "$before" ExitCode)" = 75:0 ]
check "and not queued again" grep -q "Slurm does not queue the job again" "$work/chain.log"
check "the second one ends the run" [ "$(job_field "$job" JobState)" = COMPLETED ]
check "both stand in one file" [ "$(grep -c 'start 1: status \(75\|0\), saved' "$work/chain.ends")" = 2 ]
check "no step is lost or done twice" diff <(seq 1 "$(last_step "$work/chain")") <(steps_of "$work/chain")

# 8. Node n3 ends what runs there, at every start; n6 may take its place.
wrapper breaking.sh <<END
log=$work/breaking.log
if [ "\$SLURMD_NODENAME" != n3 ]; then exec "$program" "\$@"; fi
"$program" "\$@" &
until [ "\$(grep -c 'first step done' "\$log")" -gt "\${SLURM_RESTART_COUNT:-0}" ]; do sleep 0.1; done
kill -KILL \$!
wait \$!
END
deck $ENDLESS
options=(--exclude=n5)
submit breaking
breaking=$job
wait_for grep -qs "start 2: lost n3" "$work/breaking.ends" || give_up "node n3 did not end two starts"
deck 5
wait_for ended "$breaking" || give_up "the job with a node that breaks did not end"
check "the job ends well without the node that ended two starts" [ "$(job_field "$breaking" JobState)" = COMPLETED ]
check "after three starts" [ "$(starts_of breaking)" = 3 ]
check "the node is named" grep -q "n3, at which two starts ended, is left out from now on; the job is queued again" "$work/breaking.log"
check "and the queue knows it" [ "$(scontrol show hostnames "$(job_field "$breaking" ExcNodeList)" | sort | paste -sd ,)" = n3,n5 ]

# 9. The hard limit of the first job.
wait_for ended "$limit" || give_up "the time limit did not end the job"
check "Slurm calls it a timeout" [ "$(job_field "$limit" JobState)" = TIMEOUT ]
check "the job does too" grep -q "the time limit came before the ranks had ended" "$work/limit.log"
check "and not cancelled" bash -c '! grep -q "it was cancelled" "$1"' _ "$work/limit.log"
finish
