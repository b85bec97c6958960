# Sourced by scripts/test and scripts/quickstart: named steps with their time, so that a reader of a log sees where it stands.

step_names=() step_seconds=()

# step NAME COMMAND...: runs the command under a heading. A failure ends the script and names the step.
step() {
  local name=$1 begin=$SECONDS status=0
  shift
  printf '\n== %s: %s\n' "$program" "$name"
  # Without `if` or `||` around it, so that `set -e` holds inside a function that is run as a step.
  ( set -e; "$@" )
  status=$?
  step_names+=("$name")
  step_seconds+=($((SECONDS - begin)))
  if [ $status -ne 0 ]; then
    printf '== %s: "%s" failed with status %d after %d s\n' "$program" "$name" $status $((SECONDS - begin)) >&2
    exit $status
  fi
  printf '== %s: %s done in %d s\n' "$program" "$name" $((SECONDS - begin))
}

step_summary() {
  local i
  printf '\n== %s: time in seconds\n' "$program"
  for i in "${!step_names[@]}"; do printf '   %6d  %s\n' "${step_seconds[$i]}" "${step_names[$i]}"; done
  printf '   %6d  in all\n' "$SECONDS"
}
