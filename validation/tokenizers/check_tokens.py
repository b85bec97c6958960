#!/usr/bin/env python3
"""Tokens of `tessera tokenize --tokenizer DIR` beside those of the tokenizers package itself, for tokenizers of each kind (make_tokenizers.py).

    TESSERA=build/host/tessera check_tokens.py [--rate]

Texts in many scripts, with emoji, blanks of all kinds, control characters and special tokens; as JSON lines, as one text that is cut for the workers, and
as prompts with completions. --rate instead prints bytes a second of both on all cores.
TESSERA_TEST_FULL=1: 100,000 lines of each kind. Exit status: 0 all agree, 1 not, 77 when tokenizers is not installed.
"""

import os
import random
import sys
import tempfile
import time

try:
    import tokenizers  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup --tokenizers", file=sys.stderr)
    sys.exit(77)

from make_tokenizers import KINDS, corpus, make
from program import fail, tessera, write_lines
from token_files import read

LINES = 100000 if os.environ.get("TESSERA_TEST_FULL") else 400
PIECES = ["Hello", " world", "naïve café", "Ünïcödé", "Привет, мир", "你好，世界。", "日本語テキスト", "العربية", "हिन्दी क्षि", "ไทย", "한국어", "é́̂", "e\u0301", "😀", "👩‍🚀👨‍👩‍👧",
          "🇫🇷", " ", "  ", "\t", "\n", "\n\n", "\r\n", " \n ", "\u00a0", "\u3000", "\u2003", "\u200b", "\ufeff", "\x00", "\x01\x1b[0m", "\x7f", "\u0085", "\ufffd", "\U0010ffff",
          "12345", "3.14", "don't", "I'LL", "x==1;", "    return", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<s>", "</s>", "<unk>", "<|eot_id|",
          "[INST]", "▁", "Ġ", "<0x0A>", "a" * 300, "!?!?"]


def texts(count, seed):
    draw = random.Random(seed)
    made = list(PIECES)
    made += ["".join(draw.choice(PIECES) for _ in range(draw.randint(1, 40))) for _ in range(count)]
    return made


def run(folder, name, source, *options):
    out = os.path.join(folder, "out")
    tessera("tokenize", "--tokenizer", os.path.join(folder, name), source, out, *options)
    return read(out + "/train.h5")


def ended(ids, end):
    return ids if ids and ids[-1] == end else ids + [end]


def check_lines(folder, name, tokenizer, end, workers):
    source, all_texts = os.path.join(folder, "lines.jsonl"), [t for t in texts(LINES, 7) if t]
    write_lines(source, ({"text": text} for text in all_texts))
    documents, attributes = run(folder, name, source, "--workers", workers)
    if len(documents) != len(all_texts):
        fail(f"{name}: {len(documents)} documents of {len(all_texts)}")
    for text, (ids, _) in zip(all_texts, documents):
        if ids != ended(tokenizer.encode(text).ids, end):
            fail(f"{name}: {text!r} became {ids}, and is {tokenizer.encode(text).ids}")
    if attributes["vocab"] != max(tokenizer.get_vocab().values()) + 1 or attributes["end_token"] != end or attributes["tokenizer"] != name:
        fail(f"{name}: attributes {attributes}")


def check_text(folder, name, tokenizer, end):
    """A text of several parts is what it is as one."""
    draw, source = random.Random(3), os.path.join(folder, "text.txt")
    lines = list(corpus(6000, 5)) + ["".join(draw.choice(PIECES) for _ in range(8)) for _ in range(20000)]
    draw.shuffle(lines)
    text = "\n".join(lines)
    with open(source, "w", encoding="utf-8", newline="") as file:
        file.write(text)
    [(ids, _)], _ = run(folder, name, source, "--workers", "2")
    if ids != ended(tokenizer.encode(text).ids, end):
        fail(f"{name}: a text of {len(text)} characters is cut where its tokens change")


def check_pairs(folder, name, tokenizer, end):
    """A token counts with any character of the completion."""
    source, all_texts = os.path.join(folder, "pairs.jsonl"), texts(120, 11)
    pairs = [(a, b) for a, b in zip(all_texts[1:], all_texts) if b]
    write_lines(source, ({"prompt": a, "completion": b} for a, b in pairs))
    documents, _ = run(folder, name, source)
    for (prompt, completion), (ids, counts) in zip(pairs, documents, strict=True):
        encoding = tokenizer.encode(prompt + completion)
        if ids != ended(encoding.ids, end):
            fail(f"{name}: {prompt!r} with {completion!r} became {ids}")
        for token, (begin, stop), counted in zip(encoding.ids, encoding.offsets, counts):
            if begin < stop and token != end and counted != (stop > len(prompt)):
                fail(f"{name}: {prompt!r} with {completion!r}: the token {tokenizer.id_to_token(token)!r} of {begin} to {stop} has {counted}")
        if not counts[-1]:
            fail(f"{name}: the end of {completion!r} does not count")


def rate(folder):
    """Bytes a second; the package's own from a list in memory to ids in memory."""
    tokenizer = make("llama3", os.path.join(folder, "llama3"))
    documents = ["".join(corpus(100, seed)) for seed in range(2000)]
    source, size = os.path.join(folder, "rate.jsonl"), sum(len(text.encode()) for text in documents)
    write_lines(source, ({"text": text} for text in documents))
    for _ in range(3):
        begin = time.monotonic()
        run_seconds = tessera("tokenize", "--tokenizer", os.path.join(folder, "llama3"), source, os.path.join(folder, "out")) and time.monotonic() - begin
        begin = time.monotonic()
        _ = [encoding.ids for encoding in tokenizer.encode_batch(documents)]
        own_seconds = time.monotonic() - begin
        print(f"tessera {size / run_seconds / 1e6:.2f} MB/s with all of its files, tokenizers {size / own_seconds / 1e6:.2f} MB/s: {own_seconds / run_seconds:.2f}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        if "--rate" in sys.argv:
            return rate(folder)
        for name in KINDS:
            tokenizer = make(name, os.path.join(folder, name))
            end = tokenizer.token_to_id(KINDS[name][1])
            for workers in ("1", "3"):
                check_lines(folder, name, tokenizer, end, workers)
            check_text(folder, name, tokenizer, end)
            check_pairs(folder, name, tokenizer, end)
            print(f"{name}: the tokens of the package")


main()
