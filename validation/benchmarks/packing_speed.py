#!/usr/bin/env python3
"""Short documents packed into sequences (data.packing = "documents") against the same documents padded to the length of a sequence: tokens of documents a
second, and their ratio. No test.
    packing_speed.py TESSERA [--length 1024] [--longest 300] [--steps 6] [--ranks 1] [KEY=VALUE ...]"""
import argparse
import json
import os
import random
import struct
import subprocess
import tempfile

MODEL = {"model.layers": 4, "model.width": 256, "model.heads": 4, "model.kv_heads": 4, "model.ff_width": 704, "model.vocab": 257, "batch.global": 8, "batch.micro": 4,
         "optimizer.learning_rate": 1e-3, "run.log_every": 1000, "checkpoint.every": 0, "evaluate.every": 0, "run.device": "host"}


def rate(folder, options, name, keys):
    """Tokens a second of the run's median step, padding among them, and the share of places that have a target."""
    sections = {}
    for key, value in {**MODEL, "batch.sequence_length": options.length, "run.steps": options.steps, **keys}.items():
        section, leaf = key.split(".")
        sections.setdefault(section, []).append(f"{leaf} = {json.dumps(value)}")
    deck = os.path.join(folder, name + ".toml")
    with open(deck, "w") as out:
        out.writelines(f"[{section}]\n" + "\n".join(lines) + "\n" for section, lines in sections.items())
    run = os.path.join(folder, name)
    launch = ["mpiexec", "-n", str(options.ranks)] if options.ranks > 1 else []
    subprocess.run(launch + [options.tessera, "train", deck, f"run.output_dir={run}", *options.keys], check=True, capture_output=True)
    rows = [json.loads(line) for line in open(os.path.join(run, "metrics.jsonl"))]
    steps = sorted((row for row in rows if "loss" in row), key=lambda row: row["tokens_per_second"])
    places = steps[0]["tokens_per_second"] * steps[0]["seconds"]
    return steps[len(steps) // 2]["tokens_per_second"], sum(row.get("targets", 0) for row in steps) / (len(steps) * places)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tessera")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--longest", type=int, default=300)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("keys", nargs="*")
    options = parser.parse_intermixed_args()
    options.tessera = os.path.abspath(options.tessera)
    draw = random.Random(3)
    texts = ["".join(draw.choice("abcdefgh ") for _ in range(draw.randrange(30, options.longest))) for _ in range(1000)]
    with tempfile.TemporaryDirectory(prefix="tessera-packing-") as folder:
        lines, padded = os.path.join(folder, "texts.jsonl"), os.path.join(folder, "padded.bin")
        with open(lines, "w") as out:
            out.writelines(json.dumps({"text": text}) + "\n" for text in texts)
        subprocess.run([options.tessera, "tokenize", lines, os.path.join(folder, "data")], check=True, capture_output=True)
        with open(padded, "wb") as out:  # a document and padding in each sequence
            for text in texts:
                out.write(struct.pack(f"<{options.length}H", *text.encode(), *[256] * (options.length - len(text))))
            out.write(struct.pack("<H", 256))
        packed, filled = rate(folder, options, "packed", {"data.train": os.path.join(folder, "data", "train.h5"), "data.document_mask": True, "data.packing": "documents"})
        alone, _ = rate(folder, options, "padded", {"data.train": padded})
        share = sum(map(len, texts)) / (len(texts) * options.length)
        print(f"sequences of {options.length}, documents of 30 to {options.longest} tokens: packed {packed * filled:.0f} tokens/s ({100 * filled:.1f} % of places), "
              f"padded {alone * share:.0f} tokens/s ({100 * share:.1f} %): ratio {packed * filled / (alone * share):.2f}")


if __name__ == "__main__":
    main()
