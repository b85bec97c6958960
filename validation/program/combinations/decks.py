"""Decks as drawn: choices of each key from the schema, what contradicts itself, and text. A deck is a dict of key -> value as text of TOML, without keys that have
their plain value; RANKS and NODE are among them, though they are no keys."""
import json
import os
import re
import subprocess
import sys

import choices

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs

RANKS = "ranks"
NODE = "ranks of a node"  # as TESSERA_RANKS_PER_NODE pretends; 0: all
LAUNCH = (RANKS, NODE)
MOST_RANKS = 4
STEPS = (3, 12)  # of a run: as many as a save on the way needs, and as a test has time for


class Schema:
    """Every key with its row of `tessera deck reference --json`, and the values that are drawn of it, the plain one first."""

    def __init__(self, device):
        out = subprocess.run([runs.TESSERA, "deck", "reference", "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout
        self.rows = {row["key"]: row for row in json.loads(out)}
        self.device = device
        self.values, self.faults = {}, []
        for key, row in self.rows.items():
            self.values[key] = self.of_key(key, row)
        for key in [*choices.VALUES, *choices.NOT_DRAWN]:
            if key not in self.rows:
                self.faults.append(f"{key} is in choices.py and no key of the schema")
        self.values[RANKS] = [str(ranks) for ranks in range(1, MOST_RANKS + 1)]
        self.values[NODE] = ["0", "1", "2"] if device == "host" else ["0"]  # ranks of other nodes have other GPUs, and here there is one
        self.drawn = [key for key, values in self.values.items() if len(values) > 1]
        self.plain = {key: values[0] for key, values in self.values.items() if values}

    def of_key(self, key, row):
        default, table = row["default"], choices.VALUES.get(key)
        if key in choices.NOT_DRAWN:
            return []
        values = [default if value is ... else value for value in table or []]
        if row["type"] in ("boolean", "toggle"):
            words = ["true", "false"] + ['"auto"'] * row["auto"]
        else:
            words = [json.dumps(word) for word in row["choices"]] + ['"auto"'] * bool(row["auto"] and row["choices"])
        if not words and not table:
            self.faults.append(f"{key} ({row['type']}) has no values to draw: give it some in choices.py, or say there why it is not drawn")
            return []
        if not table:
            values = [default] + [word for word in words if word != default and word.strip('"') not in row["refused"]]
        elif words:
            values += [word for word in words if word not in values]
        return values

    def identity(self, key):
        """Whether the key belongs to what a run computes, so that a plain layout has it too."""
        return key in choices.KEPT or key in self.rows and self.rows[key]["identity"]

    def value(self, deck, key):
        return deck.get(key, self.plain[key])


def rid_of_plain(schema, deck):
    return {key: value for key, value in deck.items() if value != schema.plain.get(key)}


class Place:
    """Files that decks name, and the program's word on decks."""

    def __init__(self, schema, folder):
        self.schema, self.path = schema, folder.path
        self.checks, self.seconds = 0, 0.0  # of processor time, of all ranks
        self.steps = STEPS

    def text(self, deck):
        """A deck as a file has it, with real paths."""
        lines = []
        for key in self.schema.rows:
            value = self.schema.value(deck, key) if key in self.schema.plain else None
            if value is None or key not in deck and not (self.schema.rows[key]["required"] or value != self.schema.rows[key]["default"]):
                continue
            if value == "{epochs}":
                value = self.epochs(deck)
            lines.append(f"{key} = {value.replace('{folder}', self.path)}")
        lines.append(f'run.device = "{self.schema.device}"')
        if self.schema.device == "cuda":
            lines = [line for line in lines if not line.startswith(("topology.share_gpu", "kernels.gemm_search"))] + ["topology.share_gpu = true", "kernels.gemm_search = false"]
        return "\n".join(lines) + "\n"

    def epochs(self, deck):
        """Passes of four steps: where documents are packed, some others."""
        tokens = sum(os.path.getsize(name.replace("{folder}", self.path)) // (2 if name.endswith(".bin") else 4)
                     for name in re.findall(r'"([^"]*)"', self.schema.value(deck, "data.train")))
        sequences = tokens / int(self.schema.value(deck, "batch.sequence_length"))
        return f"{3.7 * int(self.schema.value(deck, 'batch.global')) / sequences:.6f}"

    def check(self, deck):
        """(faults as (key, message), values that the program reads) of `tessera deck check`, and the faults that only the data have."""
        self.checks += 1
        path = os.path.join(self.path, "checked.toml")
        with open(path, "w") as out:
            out.write(self.text(deck))
        done = runs.tessera("deck", "check", path, "--ranks", self.schema.value(deck, RANKS), "--json")
        self.count(done)
        try:
            said = json.loads(done.stdout)
        except ValueError:
            return [("", f"status {done.returncode}: {done.stderr}")], {}
        faults = [(fault["key"], fault["message"]) for fault in said["faults"]]
        if (done.returncode == 2) != bool(faults) or done.returncode not in (0, 2):
            faults.append(("", f"status {done.returncode} with {len(faults)} faults"))
        return faults, said.get("values", {})

    def count(self, done):
        """Of a played command its processor time; of processes of their own it is not known."""
        self.seconds += getattr(done, "processor_seconds", None) or 0

    def named_in(self, message):
        """Keys of the schema, and the number of ranks where that is what a message is about."""
        named = {name for name in re.findall(r"[a-z_]+(?:\.[a-z_]+)+", message) if name in self.schema.rows}
        return named | ({RANKS} if re.search(r"there (is|are) \d+ rank|start \d+ rank", message) else set())

    def change(self, chance, deck, key):
        deck[key] = self.schema.plain[key] if chance.random() < 0.4 else chance.choice(self.schema.values[key])

    def faults_of_data(self, deck, values):
        """What a start, which reads the data, will refuse: so that few drawn decks end there."""
        train, vocab = self.schema.value(deck, "data.train"), int(self.schema.value(deck, "model.vocab"))
        both = train + self.schema.value(deck, "data.validation")
        faults = []
        if ".h5" in both and vocab < 257:
            faults.append(("model.vocab", "model.vocab is too small for data.train"))
        if ".bin" in both and self.schema.value(deck, "data.document_mask") == "true":
            faults.append(("data.train", "data.document_mask needs documents in data.train and data.validation"))
        if ".bin" in both and self.schema.value(deck, "data.bin_ids") == '"uint32"':
            faults.append(("data.bin_ids", "data.train and data.validation have ids of 16 bits"))
        if self.schema.value(deck, "samples.every") != "0" and vocab != 257:
            faults.append(("samples.every", "samples.every needs a tokenizer, or the model.vocab of bytes"))
        steps = values["run"]["steps"] if values else "auto"
        if steps != "auto" and not self.steps[0] <= steps <= self.steps[1]:
            faults.append(("run.epochs", f"makes {steps} steps of batch.global, batch.sequence_length and data.train"))
        return faults

    def settle(self, chance, deck, fixed, tries=60):
        """Changes keys that the program names in faults, at random but for the fixed ones, until there is none: (deck, the values read), or (None, the last faults)."""
        deck, faults = dict(deck), []
        for _ in range(tries):
            faults, values = self.check(deck)
            faults += self.faults_of_data(deck, values)
            if not faults:
                return rid_of_plain(self.schema, deck), values
            changed = set(fixed)
            for key, message in faults:
                named = {name for name in {key, *self.named_in(message)} if len(self.schema.values.get(name, [])) > 1}
                if named & changed - set(fixed):  # may be mended already
                    continue
                if named := sorted(named - changed):
                    key = chance.choice(named)
                    changed.add(key)
                    self.change(chance, deck, key)
        return None, faults


def make_files(folder):
    """Token files of ids below 61 without documents, of texts, and of prompts with completions; and folders for what goes to disk."""
    import random
    chance = random.Random(5)
    with open(os.path.join(folder.path, "plain.bin"), "wb") as out:
        for at in range(12000):
            out.write((chance.randrange(61) if at % 3 else at % 61).to_bytes(2, "little"))
    # Text that is soon learnt, and a stretch of it now and then that is like nothing before.
    with open(os.path.join(folder.path, "spikes.bin"), "wb") as out:
        for at in range(12000):
            out.write((chance.randrange(10, 61) if at // 24 % 23 == 9 else at % 7).to_bytes(2, "little"))
    word = lambda longest: "".join(chance.choice("abcdefgh ") for _ in range(chance.randrange(2, longest)))
    files = {"texts": [{"text": word(60 if i % 9 == 0 else 12)} for i in range(300)],
             "more": [{"text": word(14)} for _ in range(150)],
             "spikes": [{"text": word(60) if i % 19 == 9 else "abc" * chance.randrange(1, 9)} for i in range(400)],
             "pairs": [{"prompt": word(16), "completion": word(16)} for _ in range(250)]}
    for name, lines in files.items():
        path = os.path.join(folder.path, name + ".jsonl")
        with open(path, "w") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)
        subprocess.run([runs.TESSERA, "tokenize", path, os.path.join(folder.path, name)], stdin=subprocess.DEVNULL, capture_output=True, check=True)
        os.replace(os.path.join(folder.path, name, "train.h5"), os.path.join(folder.path, name + ".h5"))
        os.rmdir(os.path.join(folder.path, name))
    with open(os.path.join(folder.path, "prompts.txt"), "w") as out:
        out.write("bad\ncab a\n")
    for name in ("disk", "disk2", "staging", "tmp", "memory"):
        os.mkdir(os.path.join(folder.path, name))
