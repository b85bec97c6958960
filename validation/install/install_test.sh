#!/usr/bin/env bash
# Installs a build into a scratch folder and uses what is there, from another folder, as a user does who has nothing else.
#   install_test.sh BUILD CMAKE
set -uo pipefail
build=$1 cmake=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failures=0

# expect STATUS WORDS COMMAND...: the exit status, and words of the output
expect() {
  local status=$1 words=$2 text got
  shift 2
  text=$("$@" 2>&1)
  got=$?
  if [ "$got" != "$status" ] || [[ $text != *"$words"* ]]; then
    printf 'FAILED: %s\n  status %s (expected %s), expected words: %s\n%s\n' "$*" "$got" "$status" "$words" "$text"
    failures=$((failures + 1))
  fi
}

# Moved before it is used: nothing may know where it was installed.
expect 0 "share/tessera/inputs/quickstart.toml" "$cmake" --install "$build" --prefix "$dir/first"
echo 'echo "the settings of this site"' >"$dir/first/share/tessera/slurm/site.sh"
expect 0 "keeps" "$cmake" --install "$build" --prefix "$dir/first"
mv "$dir/first" "$dir/prefix"
prefix=$dir/prefix
share=$prefix/share/tessera
mkdir "$dir/work"
cd "$dir/work" || exit 1

# 1. The program and every deck.
expect 0 "tessera " "$prefix/bin/tessera" --version
expect 0 "run.name = \"quickstart\"" "$prefix/bin/tessera" plan --verbose "$share/inputs/quickstart.toml"
for deck in "$share"/inputs/*.toml; do expect 0 "" "$prefix/bin/tessera" deck print "$deck"; done
expect 0 "metrics" "$share/scripts/plot_run" --help
expect 0 ".SS tessera deck check" cat "$prefix/share/man/man1/tessera.1"
expect 0 "complete -o default -F _tessera tessera" cat "$prefix/share/bash-completion/completions/tessera"
expect 0 "#compdef tessera" cat "$prefix/share/zsh/site-functions/_tessera"
expect 0 "complete -c tessera" cat "$prefix/share/fish/vendor_completions.d/tessera.fish"
expect 0 "here=$share/slurm" "$prefix/bin/tessera" slurm "$share/inputs/quickstart.toml" --ranks 4

# 2. What documents link to is there.
documents=$prefix/share/doc/tessera
for document in "$documents/README.md" "$documents"/docs/*.md "$documents"/docs/*/*.md; do
  while read -r link; do
    expect 0 "" ls "$(dirname "$document")/$link"
  done < <(grep -oE '\]\([a-zA-Z0-9_/.]+\.(md|png)' "$document" | cut -c3-)
done

# 3. The job scripts, as Slurm runs them: a copy elsewhere, in the folder where sbatch was called. They find the settings, the program and the deck.
mkdir "$dir/slurm" "$dir/run"
cat >"$dir/slurm/scontrol" <<END
#!/bin/sh
echo "JobId=7 JobName=tessera"
echo "   Restarts=0 TimeLimit=1-00:00:00"
echo "   Command=$share/slurm/\$SCRIPT"
END
printf '#!/bin/sh\nwhile case $1 in --*) ;; *) false ;; esac; do shift; done\necho "srun: $*"\n"$1" deck check "$3" --ranks 64\n' >"$dir/slurm/srun"
chmod +x "$dir/slurm/scontrol" "$dir/slurm/srun"
ranks=64
job() {
  cp "$share/slurm/$1" "$dir/run/slurm_script"
  env -u TESSERA -u DECK SCRIPT="$1" PATH="$dir/slurm:$PATH" SLURM_JOB_ID=7 SLURM_NTASKS=$ranks SLURM_JOB_NUM_NODES=8 "$dir/run/slurm_script" "${@:2}"
}
for words in "the settings of this site" "srun: $prefix/bin/tessera train $share/slurm/../inputs/train_70b.toml run.seed=2" "the run is done"; do
  expect 0 "$words" job train_70b.sh run.seed=2
done
ranks=1
expect 6 "usage: sbatch" job consolidate.sh
mkdir -p runs/x/checkpoints/latest
expect 4 "$prefix/bin/tessera consolidate runs/x/checkpoints/latest out" job consolidate.sh runs/x out
ranks=4
expect 2 "srun: $prefix/bin/tessera consolidate runs/x/checkpoints/latest out" job consolidate.sh runs/x out

expect 6 "usage: slurm/local.sh" "$share/slurm/local.sh"
for file in slurm/site/infiniband.sh pbs/site/polaris.sh pbs/site.sh pbs/train.pbs pbs/common.sh; do expect 0 "" bash -n "$share/$file"; done

if [ $failures = 0 ]; then echo "what is installed works from where it stands"; fi
exit $((failures > 0))
