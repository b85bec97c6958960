#!/usr/bin/env python3
"""A tokenizer that `tessera tokenize --train-bpe` learns: the package's own, trained in the same way on the same texts; and its way through a run that begins
with it.

    TESSERA=build/host/tessera check_bpe.py

Exit status: 0 all agree, 1 not, 77 when tokenizers, transformers or h5py is not installed.
"""

import json
import os
import sys
import tempfile

try:
    import h5py
    import tokenizers
    import transformers
except ImportError as error:
    print(f"skipped: {error}; run scripts/setup --peer", file=sys.stderr)
    sys.exit(77)

from make_tokenizers import corpus
from program import fail, tessera, write_lines

VOCAB, END = 700, "<|endoftext|>"
MODEL = ["model.layers=2", "model.width=32", "model.heads=4", "model.ff_width=48", f"model.vocab={VOCAB}", "batch.global=4", "batch.micro=2", "batch.sequence_length=32",
         "optimizer.learning_rate=1e-3", "run.steps=2", "learning_rate.warmup_steps=0", "run.device=host"]


def trained(texts):
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer, made.decoder = byte_level(add_prefix_space=False), tokenizers.decoders.ByteLevel()
    made.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=[END], initial_alphabet=byte_level.alphabet(), show_progress=False))
    return made


def main():
    texts = [line for line in corpus(1500, 4) if line]
    with tempfile.TemporaryDirectory() as folder:
        source, data = os.path.join(folder, "lines.jsonl"), os.path.join(folder, "data")
        write_lines(source, ({"text": text} for text in texts))
        tessera("tokenize", "--train-bpe", str(VOCAB), source, data)
        theirs = trained(texts)
        with open(os.path.join(data, "tokenizer", "tokenizer.json"), encoding="utf-8") as file:
            ours = file.read()
        if json.loads(ours) != json.loads(theirs.to_str()):
            fail("tokenizer.json is not what the package learns from the same texts")
        loaded = transformers.AutoTokenizer.from_pretrained(os.path.join(data, "tokenizer"), local_files_only=True)
        if len(loaded) != theirs.get_vocab_size() or not 400 < len(loaded) <= VOCAB or loaded.eos_token != END:
            fail(f"transformers loads {len(loaded)} tokens that end with {loaded.eos_token}")
        with h5py.File(os.path.join(data, "train.h5")) as file:
            tokens = file["tokens"][:].tolist()
        wanted = [token for text in texts for token in [*loaded(text, add_special_tokens=False)["input_ids"], loaded.eos_token_id]]
        if tokens != wanted:
            fail(f"{len(tokens)} tokens, and transformers makes {len(wanted)}")
        run, deck = os.path.join(folder, "run"), os.path.join(folder, "deck.toml")
        with open(deck, "w", encoding="utf-8") as file:
            sections = {}
            for key in [*MODEL, f'run.output_dir="{run}"', f'data.train="{data}/train.h5"']:
                section, _, rest = key.partition(".")
                sections.setdefault(section, []).append(rest)
            for section, rows in sections.items():
                file.write(f"[{section}]\n" + "\n".join(rows) + "\n")
        deck_text = open(deck, encoding="utf-8").read().replace("device=host", 'device="host"')
        open(deck, "w", encoding="utf-8").write(deck_text)
        tessera("train", deck)
        out = os.path.join(folder, "out")
        tessera("consolidate", os.path.join(run, "checkpoints", "latest"), out)
        for where in (os.path.join(run, "tokenizer"), out):
            if open(os.path.join(where, "tokenizer.json"), encoding="utf-8").read() != ours:
                fail(f"{where} has not the run's tokenizer")
        tessera("generate", os.path.join(run, "checkpoints", "latest"), "--prompt", texts[0][:20], "--tokens", "5")
        print(f"ok   {len(loaded)} tokens learnt from {len(texts)} texts: {len(tokens)} tokens as transformers makes them; a run, its texts and its export have the tokenizer")
    return 0


if __name__ == "__main__":
    sys.exit(main())
