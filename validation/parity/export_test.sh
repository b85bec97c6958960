#!/usr/bin/env bash
# export_test.sh FIXTURE_CHECKPOINT TESSERA: every fixture's weights go through a checkpoint and `tessera consolidate`; transformers must load the export
# and give the logits that PyTorch gave, and h5py must read the same weights from checkpoint.h5. 77: torch, transformers or h5py is not there.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
run() {  # a skip is a skip of the whole test; anything else that fails is shown
  "$@" >"$work/log" 2>&1
  local status=$?
  [ $status = 0 ] || { cat "$work/log"; echo "failed with $status: $*"; exit $status; }
}
for fixture in "$here"/fixtures/*.h5; do
  name=$(basename "$fixture" .h5)
  run "$1" "$fixture" "$work/$name/checkpoints"
  run "$2" consolidate "$work/$name/checkpoints/latest" "$work/$name/out"
  run "$here/peer_python" "$here/check_checkpoint.py" "$work/$name/checkpoints/latest" "$work/$name/out"
  run "$here/peer_python" "$here/check_export.py" "$work/$name/out" "$fixture"
  echo "ok   $name"
done
