# Sourced by scripts/test, scripts/quickstart and .ci/run: named steps with their time, so that a reader of a log sees where it stands.
# STEPS_FILE in the environment: steps are listed there too, for a caller who runs several such scripts; what runs now stands in
# STEPS_FILE.now.

step_lines=() failed_steps=0

# try_step NAME COMMAND...: runs the command under a heading. Its status is the command's; a failure is said again in the summary.
try_step() {
  # What the command reads is its caller's: a variable of these names would be hidden from it.
  local step_name=$1 step_begin=$SECONDS status=0 line shell_flags=$-
  shift
  printf '\n== %s: %s\n' "$program" "$step_name"
  [ -z "${STEPS_FILE:-}" ] || printf '%s\n' "$step_name" >"$STEPS_FILE.now"
  # Without `if` or `||` around it, so that `set -e` holds inside a function that is run as a step.
  set +e
  ( set -e; "$@" )
  status=$?
  [[ $shell_flags != *e* ]] || set -e
  line=$(printf '%6d  %s' $((SECONDS - step_begin)) "$step_name")
  [ $status -eq 0 ] || line+=": failed with status $status"
  step_lines+=("$line")
  [ -z "${STEPS_FILE:-}" ] || { printf '%s\n' "$line" >>"$STEPS_FILE"; rm -f "$STEPS_FILE.now"; }
  if [ $status -ne 0 ]; then
    failed_steps=$((failed_steps + 1))
    printf '== %s: "%s" failed with status %d after %d s\n' "$program" "$step_name" $status $((SECONDS - step_begin)) >&2
  else
    printf '== %s: %s done in %d s\n' "$program" "$step_name" $((SECONDS - step_begin))
  fi
  return $status
}

# step NAME COMMAND...: the same, and a failure ends the script.
step() {
  try_step "$@"
  local status=$?
  [ $status -eq 0 ] || exit $status
}

step_summary() {
  local line
  printf '\n== %s: time in seconds\n' "$program"
  for line in "${step_lines[@]}"; do printf '   %s\n' "$line"; done
  printf '   %6d  in all\n' "$SECONDS"
}
