"""Starts tessera on small decks and reads what it left: shared by the tests of bits, resume and faults. Standard library only."""
import json
import os
import struct
import subprocess
import sys
import tempfile

TESSERA = os.environ.get("TESSERA", "build/host/tessera")
MPIEXEC = os.environ.get("MPIEXEC", "mpiexec.mpich")

MODEL = {
    "model.layers": 2, "model.width": 32, "model.heads": 4, "model.kv_heads": 2, "model.ff_width": 48, "model.vocab": 211,
    "batch.global": 60, "batch.micro": 1, "batch.sequence_length": 12,
    "optimizer.learning_rate": 3e-3, "learning_rate.warmup_steps": 2, "evaluate.every": 0, "checkpoint.every": 0, "run.log_every": 1000,
}


class Folder:
    """A temporary folder with token data; removed at the end."""

    def __enter__(self):
        self._temporary = tempfile.TemporaryDirectory(prefix="tessera-test-")
        self.path = self._temporary.name
        self.data = os.path.join(self.path, "train.bin")
        state = 12345
        tokens = []
        for _ in range(20000):
            state = (state * 1103515245 + 12345) % 2**31
            tokens.append((state >> 8) % 211 if len(tokens) % 3 else len(tokens) % 211)
        with open(self.data, "wb") as out:
            out.write(struct.pack(f"<{len(tokens)}H", *tokens))
        self.deck = os.path.join(self.path, "deck.toml")
        sections = {}
        for key, value in MODEL.items():
            section, name = key.split(".")
            sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")
        sections.setdefault("data", []).append(f'train = "{self.data}"')
        sections.setdefault("run", []).append("steps = 20")
        with open(self.deck, "w") as out:
            for section, lines in sections.items():
                out.write(f"[{section}]\n" + "\n".join(lines) + "\n")
        return self

    def __exit__(self, *unused):
        self._temporary.cleanup()

    def command(self, name, ranks, **keys):
        overrides = [f"{k.replace('__', '.')}={str(v).lower() if isinstance(v, bool) else v}" for k, v in keys.items()]
        run = [TESSERA, "train", self.deck, f"run.output_dir={self.run(name)}"] + overrides
        return run if ranks == 1 else [MPIEXEC, "-n", str(ranks)] + run

    def run(self, name):
        return os.path.join(self.path, name)

    def latest(self, name):
        return os.path.join(self.run(name), "checkpoints", "latest")

    def train(self, name, ranks, expect=0, **keys):
        done = subprocess.run(self.command(name, ranks, **keys), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        if done.returncode != expect:
            sys.exit(f"{name}: status {done.returncode}, expected {expect}\n{done.stderr[-4000:]}")
        return done

    def losses(self, name):
        """Loss of each step, as written; a step that was run twice counts once, by its last line."""
        losses = {}
        with open(os.path.join(self.run(name), "metrics.jsonl")) as lines:
            for line in lines:
                row = json.loads(line)
                if "loss" in row:
                    losses[row["step"]] = (row["loss"], row["grad_norm"])
        return losses

    def hashes(self, name):
        """Tensor name -> digest of its values, for weights and both moments."""
        done = subprocess.run([TESSERA, "inspect", self.latest(name), "--json"], capture_output=True, text=True, timeout=120)
        if done.returncode != 0:
            sys.exit(f"inspect {name}: status {done.returncode}\n{done.stderr}")
        return {(t["group"], t["name"]): t["hash"] for t in json.loads(done.stdout)["tensors"]}


def same(what, ours, reference):
    """Complains of the first difference; returns whether there was one."""
    if ours == reference:
        return True
    for key in sorted(set(ours) | set(reference)):
        if ours.get(key) != reference.get(key):
            print(f"FAIL {what}: {key}: {ours.get(key)} instead of {reference.get(key)}")
            return False
    return True
