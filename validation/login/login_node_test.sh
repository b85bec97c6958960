#!/usr/bin/env bash
# The program with CUDA on a machine that has no GPU: every command that needs none works, and those that need one say so in a line.
#   login_node_test.sh TESSERA MPIEXEC
# Exit 77 (skipped) where there is a GPU: then nothing here is true.
set -uo pipefail
tessera=$1 mpiexec=$2
root=$(dirname "$(dirname "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")")")
if [ -e /dev/nvidiactl ]; then
  echo "skipped: this machine has a GPU, and the test is of machines without one"
  exit 77
fi
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir" || exit 1
failures=0

# expect STATUS WORDS COMMAND...: the exit status and words of the output, which is kept in `text`
expect() {
  local status=$1 words=$2 got
  shift 2
  text=$("$@" 2>&1)
  got=$?
  if [ "$got" != "$status" ] || [[ $text != *"$words"* ]]; then
    printf 'FAILED: %s\n  status %s (expected %s), expected words: %s\n%s\n' "$*" "$got" "$status" "$words" "$text"
    failures=$((failures + 1))
  fi
}
# one_line: what the last command printed is one line
one_line() {
  if [ "$(wc -l <<<"$text")" != 1 ]; then
    printf 'FAILED: expected one line:\n%s\n' "$text"
    failures=$((failures + 1))
  fi
}

# 1. The program asks for no driver.
if ldd "$tessera" | grep 'libcuda\.so'; then echo "FAILED: $tessera needs the CUDA driver to load"; failures=$((failures + 1)); fi

# 2. Commands that need no device.
yes 'In the beginning was the word.' | head -n 400 >text.txt
cat >deck.toml <<'DECK'
[model]
layers = 2
width = 64
heads = 4
kv_heads = 2
ff_width = 128
vocab = 257
[batch]
global = 4
micro = 2
sequence_length = 32
[data]
train = "data/train.h5"
[optimizer]
learning_rate = 1e-3
[learning_rate]
warmup_steps = 2
[run]
steps = 3
threads = 1
DECK
expect 0 "tessera " "$tessera" --version
expect 0 "Example" "$tessera" --help
expect 0 "12400 tokens" "$tessera" tokenize text.txt data
expect 0 "ok" "$tessera" deck check deck.toml
expect 0 'device = "auto"' "$tessera" deck print deck.toml
expect 0 "## [run]" "$tessera" deck reference
expect 0 '"key": "zero.stage"' "$tessera" deck reference --json
expect 0 "planned for the host" "$tessera" plan --verbose deck.toml
expect 0 "pinned" "$tessera" plan --verbose deck.toml run.device=cuda
expect 0 '"device"' "$tessera" plan deck.toml run.device=cuda --json

# 3. Training: on the host where nothing else is asked for; a GPU that is not there is named before any work.
expect 0 'run.device = "host" (auto: no GPU is seen)' "$tessera" train deck.toml run.output_dir=auto
expect 0 "step 3" "$mpiexec" -n 2 "$tessera" train deck.toml run.device=host run.output_dir=host zero.stage=3
expect 6 'set run.device = "host"' "$tessera" train deck.toml run.device=cuda run.output_dir=cuda
one_line
if [ -e cuda ]; then echo "FAILED: a refused run left its folder"; failures=$((failures + 1)); fi

# 4. What was trained.
expect 0 "" "$tessera" inspect host/checkpoints/latest --verify --brief
expect 0 "" "$tessera" consolidate host/checkpoints/latest weights
expect 0 "In the" "$tessera" generate host/checkpoints/latest --prompt "In the" --tokens 5
expect 6 'no GPU' "$tessera" generate host/checkpoints/latest --prompt "In the" --tokens 5 --device cuda
one_line
expect 0 "loss " "$tessera" evaluate host/checkpoints/latest --data data/train.h5 --samples 4
expect 6 'no GPU' "$tessera" evaluate host/checkpoints/latest --data data/train.h5 --device cuda
one_line

# 5. The checks of a GPU get to their first probe.
expect 1 'gpu_check: smoke, probe 1 (binary version): there is no GPU on this machine' \
  env PYTHONDONTWRITEBYTECODE=1 python3 "$root/scripts/gpu_check" --build "$(dirname "$tessera")" --part smoke
one_line
if [ $failures = 0 ]; then echo "every command did what a machine without a GPU allows"; fi
exit $((failures > 0))
