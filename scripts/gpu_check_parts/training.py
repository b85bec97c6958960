"""Runs of the program itself on the device: the same bits over ZeRO stages and resume, the host's losses within bounds, the host's text."""

import json
import os
import tempfile

from .report import KEPT, clipped, row
from .smoke import rows_said

DECK = """[model]
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
steps = 6
threads = 1
"""
EXACT = ("run.device=cuda", "run.reproducible=true")


# How a run that failed is repeated: where it then passes, the fault is of what runs at once, or of the graph.
PLAIN = "CUDA_LAUNCH_BLOCKING=1 and kernels.cuda_graph=off"


class Failed(RuntimeError):
    """`late`: a program ran too long."""

    def __init__(self, words, late):
        super().__init__(words)
        self.late = late


class Training:
    """The folder that the checks share, made when the first one needs it; each check returns what is wrong, or None."""

    def __init__(self, programs, seconds):
        self.programs, self.seconds, self.scratch, self.exact_losses = programs, seconds, None, None
        self.said = {}  # notes of runs on the device, by their text

    def close(self):
        if self.scratch:
            self.scratch.cleanup()

    def run(self, *arguments, limit=None, **environment):
        done = self.programs.run([self.programs.tessera(), *arguments], limit or self.seconds, self.scratch.name, **environment)
        if done.status != 0:
            raise Failed(f"{clipped(done.text(), KEPT // 3)}\n{' '.join(arguments)}: status {done.status}", done.late)
        return done

    def run_plainly(self, name, overrides, limit):
        """What becomes of a run that failed, once more with every launch waited for and no graph, in words."""
        overrides = [word for word in overrides if not word.startswith("kernels.cuda_graph=")]
        try:
            self.run("train", "deck.toml", f"run.output_dir={name}_plain", *overrides, "kernels.cuda_graph=off", limit=limit, CUDA_LAUNCH_BLOCKING="1")
        except Failed as error:
            return f"with {PLAIN} it fails too:\n{error}"
        return f"with {PLAIN} it passes"

    def prepare(self):
        if self.scratch:
            return
        self.scratch = tempfile.TemporaryDirectory()
        with open(os.path.join(self.scratch.name, "text.txt"), "w") as file:
            file.write("In the beginning was the word. " * 400)
        with open(os.path.join(self.scratch.name, "deck.toml"), "w") as file:
            file.write(DECK)
        try:
            self.run("tokenize", "text.txt", "data")
        except RuntimeError:
            self.scratch = None
            raise

    def losses(self, name):
        with open(os.path.join(self.scratch.name, name, "metrics.jsonl")) as file:
            return [entry["loss"] for entry in map(json.loads, file) if "loss" in entry]

    def train(self, name, *overrides, limit=None):
        try:
            done = self.run("train", "deck.toml", f"run.output_dir={name}", *overrides, limit=limit)
        except Failed as error:
            if "run.device=cuda" not in overrides or self.programs.clock.over():
                raise
            raise Failed(f"{error}\n{self.run_plainly(name, overrides, limit)}", error.late)
        if "run.device=cuda" in overrides:
            for note in rows_said(f"training {name}", done.text()):
                self.said.setdefault(note["note"], note)
        return self.losses(name), done.text()

    def tell(self, report):
        """Rows of what runs said, each once."""
        for note in self.said.values():
            if not note.get("told"):
                report.measure({**note})
                note["told"] = True

    def exact(self):
        """Losses of the reproducible run at stage 0, which others are compared with."""
        if self.exact_losses is None:
            self.exact_losses = self.train("stage0", *EXACT, "zero.stage=0")[0]
        return self.exact_losses

    def stages(self):
        for stage in (1, 2, 3):
            if self.train(f"stage{stage}", *EXACT, f"zero.stage={stage}")[0] != self.exact():
                return f"losses of stage {stage} differ from those of stage 0"
        return None

    def again(self):
        return None if self.train("again", *EXACT, "zero.stage=0")[0] == self.exact() else "two runs differ"

    def graph(self):
        with_, without = (self.train(f"graph_{mode}", *EXACT, "zero.stage=0", f"kernels.cuda_graph={mode}")[0] for mode in ("on", "off"))
        return None if with_ == without else "losses of a step that is a CUDA graph differ from those of one that is not"

    def resume(self):
        saves = (*EXACT, "checkpoint.every=3", "checkpoint.keep=0")
        whole = self.train("resumed", *saves)[0]
        part, said = self.train("resumed", *saves, "run.resume=resumed/checkpoints/step-00000003", "zero.stage=3")
        if "step 3 of 6" not in said:
            return f"the run did not resume from step 3:\n{said}"
        return None if part[-3:] == whole[-3:] else f"losses after the resume {part[-3:]} are not {whole[-3:]}"

    def host(self):
        for compute, bound in (("fp32", 1e-4), ("bf16", 2e-2)):
            device = self.train(f"device_{compute}", "run.device=cuda", f"precision.compute={compute}")[0]
            twin = self.train(f"host_{compute}", "run.device=host", f"precision.compute={compute}")[0]
            worst = max(abs(a - b) / abs(b) for a, b in zip(device, twin))
            if len(device) != len(twin) or not worst <= bound:
                return f"{compute}: losses differ from the host's by {worst:.2e}, allowed {bound:.0e}"
        return None

    def text(self):
        self.train("generated", "run.device=cuda", "precision.compute=fp32")
        said = {device: self.run("generate", "generated/checkpoints/latest", "--prompt-tokens", "73,110,32,116", "--tokens", "32", "--temperature",
                                 "0", "--device", device).out for device in ("host", "cuda")}
        return None if said["cuda"] == said["host"] else f"the device says\n{said['cuda']}the host\n{said['host']}"

    CHECKS = {"same bits over ZeRO stages 0 to 3": stages, "same bits twice": again, "same bits without a CUDA graph": graph,
              "same bits after a resume at another stage": resume, "the host's losses": host, "the host's text": text}

    def check(self, name, report):
        begin, late = self.programs.clock.seconds(), False
        try:
            self.prepare()
            fault = self.CHECKS[name](self)
        except (RuntimeError, OSError, ValueError) as error:
            fault, late = str(error), getattr(error, "late", False)
        self.tell(report)
        return [row("training", name, "failed" if fault else "passed", self.programs.clock.seconds() - begin, fault or "", late)]
