#!/usr/bin/env python3
"""Parquet files of `tessera tokenize` beside the same rows as JSON lines: the same token files; and files that are refused.

    TESSERA=build/host/tessera check_parquet.py

Exit status: 0 all agree, 1 not, 77 when pyarrow or h5diff is not installed.
"""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile

try:
    import pyarrow as pa
    import pyarrow.parquet as pq
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup --tokenizers", file=sys.stderr)
    sys.exit(77)

from program import fail, run, write_lines

if not shutil.which("h5diff"):
    print("skipped: there is no h5diff (Debian: hdf5-tools)", file=sys.stderr)
    sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
FAKE = {"PYTHONPATH": os.path.join(HERE, "fake")}
WORDS = ["one", "naïve café", "Привет", "你好，世界。", "😀", "line\nline", "\x00", "  ", "x" * 3000]


def texts(count, seed):
    draw = random.Random(seed)
    return [" ".join(draw.choice(WORDS) for _ in range(draw.randint(0, 12))) for _ in range(count)]


class Check:
    def __init__(self, folder):
        self.folder = folder

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, columns, **how):
        pq.write_table(pa.table(columns), self.path(name), **how)
        return self.path(name)

    def tokenize(self, out, inputs, options, environment):
        status, _, errors = run("tokenize", *inputs, self.path(out), *options, **environment)
        if status:
            fail(f"{inputs}: status {status}\n{errors}")
        return f"{self.path(out)}/train.h5"

    def same(self, what, rows, inputs, *options, **environment):
        write_lines(self.path("rows.jsonl"), rows)
        files = [self.tokenize(out, source, options, environment) for out, source in (("lines", [self.path("rows.jsonl")]), ("rows", inputs))]
        if subprocess.run(["h5diff", *files], capture_output=True).returncode:
            fail(f"{what}: the token file is another than that of the same JSON lines")
        print(f"{what}: the token file of {len(rows)} JSON lines")

    def refuse(self, words, inputs, *options, status=3, **environment):
        got, _, errors = run("tokenize", *inputs, self.path("refused"), *options, **environment)
        if got != status or words not in errors:
            fail(f"{inputs}: status {got}, expected {status} and {words!r}:\n{errors}")
        if os.path.exists(self.path("refused")) and os.listdir(self.path("refused")):
            fail(f"{inputs}: what was refused has left {os.listdir(self.path('refused'))}")


def check_columns(check, many):
    """Under any name, and no column without a word: used, or listed."""
    lines = [{"text": text} for text in many]
    for name in ("named.parquet", "named.txt", "named.jsonl", "named"):
        check.same(f"as {name}", lines, [check.write(name, {"text": many})])
    for columns, options, unused in (({"text": many}, [], ""), ({"id": [1] * 1500, "text": many, "meta": [None] * 1500}, [], "id, meta"),
                                     ({"text": many, "body": many, "url": many}, ["--field", "body"], "text, url")):
        _, output, _ = run("tokenize", check.write("c.parquet", columns), check.path("columns"), *options)
        if [line.strip() for line in output.splitlines() if "not used" in line] != ([f"not used: {unused}"] if unused else []):
            fail(f"columns {list(columns)}: {output}")


def check_texts(check):
    many = texts(1500, 1)
    rows = [{"text": text} for text in many]
    other = list(range(1500))
    check.same("row groups", rows, [check.write("a.parquet", {"id": other, "text": many}, row_group_size=200)])
    check.same("a dictionary", rows, [check.write("a.parquet", {"text": pa.array(many).dictionary_encode(), "id": other}, compression="zstd")])
    check.same("bytes", rows, [check.write("a.parquet", {"text": [text.encode() for text in many]}, compression="none")])
    check.same("long texts", rows, [check.write("a.parquet", {"text": pa.array(many, pa.large_string())})])
    pairs = [{"prompt": text, "completion": text + "!"} for text in many[:300]]
    check.same("prompts and completions", pairs, [check.write("b.parquet", {"completion": [p["completion"] for p in pairs], "prompt": [p["prompt"] for p in pairs]})])
    column = [{"content": text} for text in many]
    check.same("a column by name", column, [check.write("b.parquet", {"content": many, "text": other, "prompt": other})], "--field", "content")
    check_columns(check, many)
    # Several files by a pattern, beside JSON lines.
    for k, name in enumerate(("p/0.parquet", "p/1.parquet", "p/10.parquet")):
        os.makedirs(check.path("p"), exist_ok=True)
        check.write(name, {"text": many[400 * k : 400 * (k + 1)]})
    write_lines(check.path("rest.jsonl"), rows[1200:])
    check.same("a pattern, and JSON lines", rows, [check.path("p/*.parquet"), check.path("rest.jsonl")])
    # One row of many bytes among small ones.
    check.same("a long row", [{"text": "a"}, {"text": "y" * 5_000_000}, {"text": "b"}], [check.write("b.parquet", {"text": ["a", "y" * 5_000_000, "b"]})])


def check_conversations(check):
    model = check.path("model")
    os.makedirs(model)
    for name, text in (("tokenizer.json", '{"added": {"<end>": 1114112}}'), ("tokenizer_config.json", '{"eos_token": "<end>"}'),
                       ("chat_template.jinja", "''.join('<' + m['role'] + '|' + m['content'] + ('!' if 'name' in m else '') + '>' for m in messages) + "
                                               "('<assistant|' if add_generation_prompt else '')")):
        with open(os.path.join(model, name), "w", encoding="utf-8") as file:
            file.write(text)
    options = ["--tokenizer", model, "--chat", "--workers", "2"]
    rows = [{"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": text[::-1], **({"name": "x"} if k % 3 == 0 else {})}]}
            for k, text in enumerate(texts(400, 2))]
    check.same("conversations", rows, [check.write("c.parquet", {"messages": [row["messages"] for row in rows], "id": list(range(400))}, row_group_size=90)], *options, **FAKE)
    turns = [{"turns": row["messages"]} for row in rows]
    check.same("conversations by name", turns, [check.write("c.parquet", {"turns": [row["turns"] for row in turns], "messages": [1] * 400})], *options, "--field", "turns", **FAKE)
    asked = [{"instruction": "i", "input": "j", "output": "o"}, {"instruction": "k", "output": "p"}]
    check.same("instructions", asked, [check.write("c.parquet", {"instruction": ["i", "k"], "input": ["j", None], "output": ["o", "p"]})], *options, **FAKE)
    said = [{"system": "s", "messages": rows[1]["messages"]}, {"messages": json.dumps(rows[2]["messages"])}]
    columns = {"system": ["s", None], "messages": [json.dumps(row["messages"]) if k == 0 else row["messages"] for k, row in enumerate(said)], "source": ["w", None]}
    check.same("a system's column, and messages as texts of JSON", said, [check.write("c.parquet", columns)], *options, **FAKE)
    check.refuse('d.parquet: row 1: this program does not know "odd" beside the messages',
                 [check.write("d.parquet", {"messages": [rows[0]["messages"]], "odd": ["x"]})], *options, **FAKE)
    check.refuse("d.parquet: row 2: its messages are an empty list", [check.write("d.parquet", {"messages": [rows[0]["messages"], []]})], *options, **FAKE)
    check.refuse('d.parquet: there is no column "messages" or "conversations", nor "instruction"', [check.write("d.parquet", {"text": ["a"]})], *options, **FAKE)
    check.refuse("d.parquet: row 1: it cannot be written as JSON", [check.write("d.parquet", {"messages": [b"a"]})], *options, **FAKE)


def check_refusals(check):
    good = check.write("good.parquet", {"text": texts(3000, 3)}, row_group_size=500)
    check.refuse('bad.parquet: there is no column "text". Its columns: "content" of string, "id" of int64', [good, check.write("bad.parquet", {"content": ["a"], "id": [1]})])
    check.refuse('good.parquet: there is no column "body"', [good], "--field", "body")
    check.refuse('bad.parquet: the column "text" is of int64, not text', [check.write("bad.parquet", {"text": [1, 2]})])
    check.refuse('the column "text" is of list<', [check.write("bad.parquet", {"text": [["a"]]})])
    check.refuse('bad.parquet: row 1501: "text" is null', [check.write("bad.parquet", {"text": ["a"] * 1500 + [None]}, row_group_size=400)])
    check.refuse('there is a column "text" and also', [check.write("bad.parquet", {"text": ["a"], "prompt": ["b"]})])
    check.refuse('there is no column "completion"', [check.write("bad.parquet", {"prompt": ["b"]})])
    check.refuse('row 2: "completion" is empty', [check.write("bad.parquet", {"prompt": ["b", "b"], "completion": ["c", ""]})])
    check.refuse("bad.parquet: row 2: its text is not UTF-8 at byte offset 3", [check.write("bad.parquet", {"text": [b"a", b"abc\xff"]})])
    check.refuse("bad.parquet: the file holds no text", [good, check.write("bad.parquet", {"text": pa.array([], pa.string())})])
    check.refuse("bad.parquet: the file holds no text", [check.write("bad.parquet", {"text": ["", ""]})])
    check.refuse("standard input: Parquet is read from its end", ["-"], "--format", "parquet", status=2)
    with open(good, "rb") as file:
        whole = file.read()
    for name, content, words in (("empty", b"", "the file holds no text"), ("half", whole[: len(whole) // 2], "cannot read it as Parquet"), ("text", b"text\n" * 9, "its name says Parquet, but the file does not begin like Parquet"),
                                 ("holed", whole[:1000] + bytes(30000) + whole[31000:], "cannot read it as Parquet")):
        with open(check.path(name + ".parquet"), "wb") as file:
            file.write(content)
        check.refuse(f"{name}.parquet: ", [check.path(name + ".parquet")])
        check.refuse(words, [check.path(name + ".parquet")])
    # A text that many rows share is in the file once, and in memory as often as there are rows.
    swollen = pa.DictionaryArray.from_arrays(pa.array([0] * 4000, pa.int32()), ["a" * (1 << 20)])
    check.refuse("got no more memory: it may take 1 GiB", [check.write("swollen.parquet", {"text": swollen})], "--worker-memory", "1", status=6)
    os.makedirs(check.path("without"))
    with open(check.path("without/pyarrow.py"), "w", encoding="utf-8") as file:
        file.write("raise ImportError('there is none')")
    check.refuse("-m pip install pyarrow", [good], status=6, PYTHONPATH=check.path("without"))
    check.refuse("good.parquet: ", [good], status=6, PYTHONPATH=check.path("without"))
    print("what cannot be read is refused by name")


with tempfile.TemporaryDirectory() as scratch:
    for part in (check_texts, check_conversations, check_refusals):
        part(Check(scratch))
