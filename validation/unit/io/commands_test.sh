#!/usr/bin/env bash
# tessera tokenize and tessera inspect as a user runs them.  commands_test.sh TESSERA MAKE_CHECKPOINT
set -uo pipefail
tessera=$1 make_checkpoint=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failures=0

# expect STATUS WORDS COMMAND...: the exit status and words of the output
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

# 1. tokenize
printf 'In the beginning\n' > "$dir/a.txt"
expect 0 "$dir/data/train.h5: 17 tokens" "$tessera" tokenize --tokenizer byte "$dir/a.txt" "$dir/data"
expect 0 "val.h5: 5 tokens" "$tessera" tokenize "$dir/a.txt" "$dir/data" --validation 0.3
printf '{"text": "one"}\n{"text": "two"}\n' > "$dir/b.jsonl"
expect 0 "2 documents" "$tessera" tokenize "$dir/b.jsonl" "$dir/data2"
expect 0 "2 inputs: 3 documents" "$tessera" tokenize "$dir/a.txt" "$dir/b.jsonl" "$dir/data4" --workers 1
expect 0 "train.h5: 7 tokens" "$tessera" tokenize --format jsonl "$dir/[b].jsonl" "$dir/data4"
printf '[{"text": "one", "id": 1},\n {"text": "two", "meta": null}]' > "$dir/d.json"
expect 0 "not used: id, meta" "$tessera" tokenize "$dir/d.json" "$dir/data4"
gzip -k "$dir/b.jsonl"
expect 3 "zcat $dir/b.jsonl.gz | tessera tokenize - FOLDER" "$tessera" tokenize "$dir/b.jsonl.gz" "$dir/data3"
expect 0 "standard input: 2 documents" bash -c "zcat '$dir/b.jsonl.gz' | '$tessera' tokenize - '$dir/data4'"
expect 0 "2 documents" bash -c "zcat '$dir/b.jsonl.gz' | '$tessera' tokenize /dev/stdin '$dir/data4'"
expect 3 "b.jsonl:1: the line has more than 9 B" "$tessera" tokenize "$dir/b.jsonl" "$dir/data3" --longest-line 0.000009
expect 0 "[OPTIONS] INPUT... FOLDER" "$tessera" tokenize --help
expect 2 "INPUT... FOLDER" "$tessera" tokenize "$dir/a.txt"
expect 3 "/dev/null: this is a device" "$tessera" tokenize /dev/null "$dir/data3"
printf 'bad \377 byte' > "$dir/c.txt"
expect 3 "c.txt:1: not UTF-8 at byte offset 4" "$tessera" tokenize "$dir/c.txt" "$dir/data3"
expect 2 "--tokenizer bpe: bpe/tokenizer.json is missing" "$tessera" tokenize --tokenizer bpe "$dir/a.txt" "$dir/data3"
[ -e "$dir/data3" ] && { echo "FAILED: a refused input left $dir/data3"; failures=$((failures + 1)); }

# 2. inspect
"$make_checkpoint" "$dir/run" 3 || exit 1
expect 0 "step 1000, 123456789 samples seen" "$tessera" inspect "$dir/run/latest"
expect 0 "every byte of the index and of 3 shards" "$tessera" inspect "$dir/run/latest" --verify --brief
expect 0 'name = "tiny"' "$tessera" inspect "$dir/run/latest/checkpoint.h5" --deck --brief
expect 0 "shard-00002.h5: elements [0, 97)" "$tessera" inspect "$dir/run/latest" --tensor layers.0.norm
expect 2 "no tensor 'none'" "$tessera" inspect "$dir/run/latest" --tensor none
expect 4 "use $dir/run/step-00001000" "$tessera" inspect "$dir/run"
expect 0 "" "$tessera" inspect "$dir/run/latest" --json
"$tessera" inspect "$dir/run/latest" --json --verify | python3 -c '
import json, sys
j = json.load(sys.stdin)
assert j["step"] == 1000 and j["seed"] == 0xfedcba9876543210 and j["verified"]
assert [s["file"] for s in j["shards"]] == ["shard-%05d.h5" % i for i in range(3)]
t = {t["name"]: t for t in j["tensors"]}
assert t["layers.0.conv"]["shape"] == [3, 5, 7, 11] and t["embedding.weight"]["min"] < 0 < t["embedding.weight"]["std"]
' || { echo "FAILED: inspect --json"; failures=$((failures + 1)); }

expect 0 "step 1000, " "$tessera" verify "$dir/run"
cp -r "$dir/run" "$dir/damaged" && mv "$dir/damaged/step-00001000" "$dir/damaged/step-00000900" && cp -r "$dir/run/step-00001000" "$dir/damaged/"
printf 'x' | dd of="$dir/damaged/step-00000900/shard-00001.h5" bs=1 seek=9000 conv=notrunc status=none
expect 4 "1 of 2 are whole" "$tessera" verify "$dir/damaged"
expect 4 "DAMAGED  $dir/damaged/step-00000900" "$tessera" verify "$dir/damaged/step-00000900" "$dir/run/latest"
{ "$tessera" verify "$dir/damaged" --json || [ $? -eq 4 ]; } | python3 -c '
import json, sys
j = json.load(sys.stdin)
assert j["whole"] == j["damaged"] == 1 and [c["whole"] for c in j["found"]] == [False, True] and "shard-00001.h5" in j["found"][0]["fault"], j
' || { echo "FAILED: verify --json"; failures=$((failures + 1)); }
rm "$dir/damaged/step-00001000/checkpoint.h5"
expect 4 "DAMAGED  $dir/damaged/step-00001000" "$tessera" verify "$dir/damaged/step-00001000"
ln -sfn step-00000007 "$dir/damaged/latest"
expect 4 "DAMAGED  $dir/damaged/latest" "$tessera" verify "$dir/damaged"
mkdir "$dir/empty"
expect 4 "it has no checkpoint" "$tessera" verify "$dir/empty"
expect 2 "no such file or folder" "$tessera" verify "$dir/nothing"
ln -s gone "$dir/astray"
expect 6 "it is a link to nothing" "$tessera" verify "$dir/astray"

# 3. The same tensors cut into boxes
"$make_checkpoint" "$dir/cut" cut || exit 1
expect 0 ", format 2," "$tessera" inspect "$dir/cut/latest" --verify --brief
expect 0 "layers.0.attention.wq is cut into" "$tessera" inspect "$dir/cut/latest" --tensor layers.0.attention.wq
expect 0 ") of the piece" "$tessera" inspect "$dir/cut/latest" --tensor layers.0.attention.wq
for run in run cut; do "$tessera" inspect "$dir/$run/latest" --json > "$dir/$run.json" || exit 1; done
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PYTHONPATH="$here/../../program/resume" python3 - "$dir" << 'END' || { echo "FAILED: a cut checkpoint is not what the whole one is"; failures=$((failures + 1)); }
import json, sys
import runs
dir = sys.argv[1]
whole, cut = (json.load(open(f"{dir}/{run}.json")) for run in ("run", "cut"))
assert (whole["format"], cut["format"]) == (1, 2)
hashes = [{t["name"]: t["hash"] for t in run["tensors"]} for run in (whole, cut)]
assert hashes[0] == hashes[1] and len(hashes[0]) == 6
holders = {u["name"]: u.get("holders", range(len(cut["shards"]))) for u in cut["units"]}
boxes = 0
for t in cut["tensors"]:
    elements = 1
    for n in t["shape"]:
        elements *= n
    for piece in t.get("pieces", [t]):
        boxes += "start" in piece
        assert all(part["shard"] in holders[piece["unit"]] for part in piece["parts"])
        elements -= sum(part["end"] - part["begin"] for part in piece["parts"])
    assert elements == 0, t["name"]
assert boxes > 8
for s, shard in enumerate(cut["shards"]):
    assert set(shard["slices"]) == {unit for unit, held in holders.items() if s in held}
# The shard files alone, read by none of the program's code.
assert runs.read_state(f"{dir}/run/step-00001000") == runs.read_state(f"{dir}/cut/step-00001000")
END
# 4. Differences
"$make_checkpoint" "$dir/changed" changed || exit 1
"$make_checkpoint" "$dir/narrow" narrow || exit 1
expect 0 "12 of 12 tensors of all groups have the same bits" "$tessera" inspect "$dir/run/latest" --diff "$dir/cut/latest"
expect 4 "10 of 12 tensors" "$tessera" inspect "$dir/cut/latest" --diff "$dir/changed/latest"
expect 4 "head.bias  of shape 3 x 1 and 1 x 3" "$tessera" inspect "$dir/run/latest" --diff "$dir/narrow/latest"
expect 0 "2 of 2 tensors" "$tessera" inspect "$dir/run/latest" --diff "$dir/changed/latest" --tensor layers.0.norm
expect 2 "holds a tensor 'none'" "$tessera" inspect "$dir/run/latest" --diff "$dir/cut/latest" --tensor none
expect 4 "use $dir/run/step-00001000" "$tessera" inspect "$dir/cut/latest" --diff "$dir/run"
{ "$tessera" inspect "$dir/run/latest" --diff "$dir/changed/latest" --json || [ $? -eq 4 ]; } | python3 -c '
import json, math, sys
j = json.load(sys.stdin)
rows = {(row["group"], row["name"]): row for row in j["differing"]}
assert j["compared"] == 12 and j["same"] == 10 and len(rows) == 2
weights, moments = rows["master", "layers.0.attention.wq"], rows["adam_m", "layers.0.attention.wq"]
assert weights["elements"] == 31 * 77 and weights["differing"] == 2 and weights["not_finite"] == 0 and abs(weights["largest"] - 0.5) < 1e-6
assert 0 < weights["relative"] < 1e-2
assert moments["differing"] == moments["not_finite"] == 1 and moments["largest"] == 0
' || { echo "FAILED: inspect --diff --json"; failures=$((failures + 1)); }
rm "$dir/run/step-00001000/shard-00001.h5"
expect 4 "shard-00001.h5: this shard (1 of 3) is missing" "$tessera" inspect "$dir/cut/latest" --diff "$dir/run/latest"
expect 4 "shard-00001.h5: this shard (1 of 3) is missing" "$tessera" inspect "$dir/run/latest"
expect 0 "1 MISSING" "$tessera" inspect "$dir/run/latest" --brief
exit $((failures > 0))
