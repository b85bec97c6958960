"""Plays a deck: it trains, goes on at another layout, and gives what the plain layout gives. What differs is a Fault."""
import glob
import json
import math
import os
import re
import shutil
import subprocess

import choices
from decks import NODE, RANKS, rid_of_plain, runs

# Of a loss, where sums have another order: of fp32, and of values that are rounded to 16 bits on the way. A gradient's norm sums more of what differs.
NEAR = {'"fp32"': (1e-4, 2e-3), '"bf16"': (1e-2, 5e-2), '"fp16"': (1e-2, 5e-2), '"fp8"': (5e-2, 0.5)}
# Of a gradient's norm after updates, which round otherwise: whether rounding is all of it, the same deck in fp32 tells.
FAR = {'"bf16"': 0.5, '"fp8"': 1.5}
ROUNDING = 4  # times what a millionth of an update makes: so much may be rounding
STATUSES = (2, 3, 4, 5, 6)  # of ExitCode: those of a run that is refused before its first step
OUT_OF_WAYS = 8  # and that of a run whose guards have come to their limit
FIGURES = ("val_loss", "reference_loss", "targets", "document_squares", "dropped", "expert_load", "router_balance", "router_z", "samples_of_files", "targets_of_files", "loss_of_files")
OF_RUN = {"metrics.jsonl", "events.jsonl", "profile.json", "metrics.csv", "tensorboard", "deck.toml", "plan.txt", "run.lock", "checkpoints",
          "weights", "trace", "tokenizer", "neighbours.json", "samples.jsonl"}


class Fault(Exception):
    """`kind` stays the same while a deck is shrunk; the words say more."""

    def __init__(self, kind, words=""):
        super().__init__("\n    ".join([kind, *words.splitlines()[-8:]]))
        self.kind = kind


class Rounding(Fault):
    """What is far in bf16, and perhaps near in fp32."""


class Refused(Exception):
    def __init__(self, key, words, named):
        super().__init__(words)
        self.key, self.named = key, named


class Trial:
    def __init__(self, schema, place, folder):
        self.schema, self.place, self.folder = schema, place, folder
        self.decks = {}  # of plain layouts, by name
        self.ended = {}  # by name of a run: 0, or OUT_OF_WAYS where that is looked for

    def start(self, name, deck, **keys):
        """The output of a run, or what refused it."""
        self.folder.deck = os.path.join(self.place.path, name + ".toml")
        with open(self.folder.deck, "w") as out:
            out.write(self.place.text(deck))
        os.environ.pop("TESSERA_RANKS_PER_NODE", None)
        if (node := self.schema.value(deck, NODE)) != "0":
            os.environ["TESSERA_RANKS_PER_NODE"] = node
        if self.schema.value(deck, "checkpoint.neighbour_every") != "0":  # all ranks may be on one node here
            keys["checkpoint__allow_same_node"] = True
        try:
            done = self.folder.train(name, int(self.schema.value(deck, RANKS)), **keys)
            self.place.count(done)
            return done.stderr
        except subprocess.TimeoutExpired:
            raise Fault("a run that does not end") from None
        except SystemExit as ended:
            said = str(ended)
        status = re.search(r"status (-?\d+)", said)
        if status is None:
            raise Fault("a run that does not end", said)
        status = int(status[1])
        error = re.search(r"error: (.*)", said)
        shape = re.sub(r"\d+|/\S+|step-\S*|'[^']*'|\"[^\"]*\"", "N", error[1]) if error else ""
        if status == OUT_OF_WAYS and name in self.ended and "guards." in said:
            self.ended[name] = status
            return said
        if status not in STATUSES:
            raise Fault(f"status {status}: {shape}", said)
        named = sorted(self.place.named_in(said[error.start():]) - {RANKS}) if error else []
        if not named:
            raise Fault(f"status {status} names no key: {shape}", said)
        steps = self.steps(name)
        if any(step > 0 for step in steps):
            raise Fault(f"status {status} after step {max(steps)}: {shape}", said)
        raise Refused(f"{named[0]} ({status})", said[error.start():], named)

    def steps(self, name):
        return [row["step"] for row in self.folder.metrics(name) if "loss" in row] if os.path.exists(os.path.join(self.folder.run(name), "metrics.jsonl")) else []

    def play(self, case):
        """case: {"deck": ..., "then": ... or None}. Raises Fault or Refused; returns what was compared."""
        try:
            return self.play_once(case)
        except Rounding as far:
            def of_fp32(deck):  # fp16 alone has a loss scale, and bf16 products in fp8
                kept = {key: value for key, value in deck.items() if not key.startswith(("precision.loss_scale.", "precision.fp8"))}
                return {**kept, "precision.compute": '"fp32"', "precision.gradients": '"fp32"'}
            in_fp32 = {part: deck and of_fp32(deck) for part, deck in case.items()}
            try:
                return self.play_once(in_fp32) + ", near in fp32"
            except Refused as refused:
                raise Fault(far.kind, f"{far}\nin fp32 it is refused: {refused}") from None
            except Fault as fault:
                raise Fault(far.kind, f"{far}\nin fp32: {fault}") from None

    def clear(self):
        """Runs of the case before."""
        for entry in os.scandir(self.place.path):
            if entry.is_dir() and entry.name.startswith("run-") or entry.name.startswith("run-"):
                shutil.rmtree(entry.path) if entry.is_dir() else os.remove(entry.path)
        for left in glob.glob(os.path.join(self.place.path, "tmp", "tessera-run-*.prom")):  # of one that has come to its limit: what it said last
            os.remove(left)

    def play_once(self, case):
        self.clear()
        deck, then = case["deck"], case.get("then")
        said = self.start("run-a", deck)
        self.look_at("run-a", deck, said)
        references = self.references(deck)
        self.compare("run", "run-a", deck, references, self.axes(deck))
        if then is None or not (start := self.first_save("run-a")):
            return "alone"
        if then.get(RANKS) is None:
            then = {**then, RANKS: "1"}
        try:
            said = self.start("run-b", then, run__resume=start)
        except Refused as refused:
            raise Refused("resume: " + refused.key, str(refused), None) from None
        self.look_at("run-b", then, said)
        self.compare("resume", "run-b", then, references, self.axes(deck))
        return "resumed"

    # What a run leaves

    def look_at(self, name, deck, said, after=0):
        for used, planned in re.findall(r"memory (\S+ \S+) of (\S+ \S+)", said):
            if used != planned:
                raise Fault("bytes used and planned", f"{used} used, {planned} planned\n{said}")
        self.look_at_plan(name, deck, said)
        self.look_at_reference(name, deck)
        losses = self.folder.losses(name)
        if not losses or any(not math.isfinite(x) for values in losses.values() for x in values):
            raise Fault("losses that are not finite", str(losses))
        losses = {step: values for step, values in losses.items() if step > after}  # of the start that is looked at
        left = {entry.name for entry in os.scandir(self.folder.run(name))} - OF_RUN
        saves = os.path.join(self.folder.run(name), "checkpoints")
        left |= {entry for entry in os.listdir(saves) if not re.fullmatch(r"step-\d{8}|latest|best|line\.json", entry)}
        for folder in ("disk", "disk2", "tmp"):
            left |= {f"{folder}/{entry}" for entry in os.listdir(os.path.join(self.place.path, folder))}
        left |= {os.path.relpath(path, self.place.path) for path in glob.glob(os.path.join(self.place.path, "staging", "**"), recursive=True) if os.path.isfile(path)}
        left |= {f"memory/{entry}" for entry in os.listdir(os.path.join(self.place.path, "memory"))}
        left |= {entry for entry in os.listdir(self.place.path) if entry.startswith(".")}
        if left:
            raise Fault("left behind", ", ".join(sorted(left)))
        if (step := int(re.findall(r"\d+", str(self.schema.value(deck, "run.trace")))[-1])) in losses:
            timelines = glob.glob(os.path.join(self.folder.run(name), "trace", f"step-*{step}", "rank-*.json"))
            if len(timelines) != int(self.schema.value(deck, RANKS)):
                raise Fault("timelines", f"{timelines} of {self.schema.value(deck, RANKS)} ranks")
        if (every := int(self.schema.value(deck, "checkpoint.weights_every"))) and any(step % every == 0 for step in losses):
            if not glob.glob(os.path.join(self.folder.run(name), "weights", "step-*")):
                raise Fault("no weights were saved")

    def look_at_reference(self, name, deck):
        """At the first step of a run the reference is the model, but for what rounds the model's weights alone."""
        rows = {row["step"]: row for row in self.folder.metrics(name) if "loss" in row}
        wanted = self.schema.value(deck, "reference.model") != '"none"'
        if any(("reference_loss" in row) != wanted for row in rows.values()):
            raise Fault("rows with a reference_loss", str(rows))
        rounds = self.schema.value(deck, "precision.fp8") != '"none"' or self.schema.value(deck, "zero.quantized_weights") == "true"
        if wanted and 1 in rows and not rounds and rows[1]["reference_loss"] != rows[1]["loss"]:
            raise Fault("the reference's first loss", f"{rows[1]['reference_loss']} instead of {rows[1]['loss']}")

    def look_at_plan(self, name, deck, said):
        """`tessera plan` says the bytes that rank 0 has, for as many threads. What is as large as memory allows it cannot know."""
        used, threads = re.search(r"memory (\S+ \S+) of", said), re.search(r"machine +(\d+) threads a rank", said)
        if not used or not threads or self.schema.value(deck, "activation.recompute") == '"auto"':
            return
        plan = self.folder.plan(int(self.schema.value(deck, RANKS)), "--threads", threads[1], "--ranks-per-node", self.schema.value(deck, NODE))
        planned = plan.get("bytes_per_rank_of_all_phases", plan["bytes_per_rank"])
        if runs.human_bytes(planned) != used[1]:
            raise Fault("bytes of tessera plan", f"{used[1]} used, {runs.human_bytes(planned)} planned")

    def first_save(self, name):
        """A checkpoint before the last step, if one stays."""
        last = max(self.steps(name))
        saves = sorted(glob.glob(os.path.join(self.folder.run(name), "checkpoints", "step-*")))
        return next((save for save in saves if int(save[-8:]) < last), None)

    # What a run computes

    def axes(self, deck):
        sizes = {axis: self.schema.value(deck, axis) for axis in choices.ARITHMETIC}
        if sizes["mesh.cp"] != "1":
            sizes["context.method"] = self.schema.value(deck, "context.method")
        if self.schema.device == "cuda":  # ours and cuDNN's round otherwise
            sizes["kernels.attention"] = self.schema.value(deck, "kernels.attention")
        return rid_of_plain(self.schema, sizes)

    def kept(self, deck):
        """Keys that decide what a run of the deck computes."""
        of_blocks = choices.KEPT_IN_BLOCKS if self.schema.value(deck, "zero.quantized_weights") == "true" else ()
        of_guards = choices.KEPT_BY_GUARDS if self.schema.value(deck, "guards.spike") != '"off"' else ()
        return {key for key in self.schema.values if self.schema.identity(key)} | {*of_blocks, *of_guards}

    def plain(self, deck, axes):
        """The plain layout of a deck, with these sizes of the axes that are part of the arithmetic."""
        kept = {key: value for key, value in deck.items() if key in self.kept(deck)}
        ranks = math.prod(int(axes.get(axis, 1)) for axis in choices.AXES)
        if self.schema.value(deck, "precision.gradients") == '"bf16"':  # one micro-batch a rank
            most = max(int(of) for of in [self.schema.value(deck, "batch.global"), *re.findall(r"global = (\d+)", deck.get("batch.ramp", ""))])
            shares = -(-most // int(self.schema.value(deck, "batch.micro")))
            ranks *= shares
        return {**kept, **axes, RANKS: str(ranks), "run.lanes": '"inline"', "run.threads": "1"}

    def references(self, deck):
        """By sizes of the axes: names of runs of the plain layout, made when asked for."""
        made = {}

        def of(axes):
            key = json.dumps(axes, sort_keys=True)
            if key not in made:
                name = f"run-plain{len(made)}"
                self.decks[name] = self.plain(deck, axes)
                try:
                    self.start(name, self.decks[name])
                except Refused as refused:
                    raise Fault(f"the plain layout is refused by {refused.key}", str(refused)) from None
                made[key] = name
            return made[key]
        return of

    def compare(self, what, name, deck, references, begun):
        """Bits are promised where all steps had the same arithmetic, that of `begun` for the first ones."""
        axes = self.axes(deck)
        exact = self.schema.value(deck, "run.reproducible") == "true" and axes == begun
        if exact:
            self.same(what, name, references(axes))
        # Where there is room for some tokens only, whose they are is a rank's own affair.
        drops = self.schema.value(deck, "model.experts") != "0" and self.schema.value(deck, "experts.capacity_factor") != '"dropless"'
        # So are scales of fp8: each rank's part of a matrix has its own.
        in_fp8 = self.schema.value(deck, "precision.fp8") != '"none"'
        # So are blocks of quantised weights, which begin where a rank's part of a unit does.
        in_blocks = self.schema.value(deck, "zero.quantized_weights") == "true" and ("mesh.tp" in axes or "mesh.ep" in axes)
        cut = ((drops or in_fp8) and ("mesh.tp" in axes or "mesh.cp" in axes)) or in_blocks
        if (axes or not exact) and not (cut and exact):
            self.near(what, name, references(axes if cut else {}), NEAR['"fp8"' if in_fp8 else self.schema.value(deck, "precision.compute")])

    def figures(self, name, after):
        """Of each step after this one, in order, what the rows of metrics.jsonl say."""
        return {(row["step"], key): row[key] for row in self.folder.metrics(name) for key in FIGURES if key in row and row["step"] > after and "saved" not in row}

    def hashes(self, name):
        return self.folder.hashes(name) if os.path.exists(self.folder.latest(name)) else {}

    def same(self, what, name, reference, cut=None):
        """`cut`: a step at which the run had ended once, after which it was evaluated whatever was due."""
        losses, wanted = self.folder.losses(name), self.folder.losses(reference)
        for step, values in losses.items():
            if values != wanted.get(step):
                raise Fault(f"{what}: bits of {'the loss' if values[0] != wanted.get(step, [None])[0] else 'the gradient norm'}", f"step {step}: {values} instead of {wanted.get(step)}")
        after = min(losses) - 1
        ours, theirs = self.figures(name, after), self.figures(reference, after)
        for key in sorted(ours.keys() | theirs.keys()):
            if ours.get(key) != theirs.get(key) and key != (cut, "val_loss"):
                raise Fault(f"{what}: {key[1]}", f"step {key[0]}: {ours.get(key)} instead of {theirs.get(key)}")
        ours, theirs = self.hashes(name), self.hashes(reference)
        for key in sorted(ours.keys() | theirs.keys()):
            if ours.get(key) != theirs.get(key):
                raise Fault(f"{what}: bits of the state", f"{key}: {ours.get(key)} instead of {theirs.get(key)}")

    def sensitivity(self, reference, step, of):
        """How far a step of the plain layout goes where updates are a millionth longer: more than rounding, and of most decks far less than any limit. Not so where signs
        of small numbers are steps (onebit_adam without momentum, a large learning rate, routers)."""
        name, deck = reference + "-longer", self.decks[reference]
        if not os.path.exists(self.folder.run(name)):
            self.start(name, {**deck, "optimizer.learning_rate": repr(float(self.schema.value(deck, "optimizer.learning_rate")) * (1 + 1e-6))})
        at = ("the loss", "the gradient norm").index(of)
        ours, theirs = self.folder.losses(name)[step][at], self.folder.losses(reference)[step][at]
        return abs(ours - theirs) / max(abs(theirs), 1e-3)

    def near(self, what, name, reference, limits):
        wanted = self.folder.losses(reference)
        for step, values in self.folder.losses(name).items():
            for ours, theirs, limit, of in zip(values, wanted[step], limits, ("the loss", "the gradient norm")):
                off = abs(ours - theirs) / max(abs(theirs), 1e-3)
                if off > limit:
                    if step > 1 and off <= ROUNDING * self.sensitivity(reference, step, of):
                        return  # what follows says nothing of the layout
                    far = next((FAR[compute] for compute in FAR if limits == NEAR[compute]), 0)
                    rounded = of != "the loss" and step > 1 and off <= far
                    raise (Rounding if rounded else Fault)(f"{what}: {of} is not near", f"step {step}: {values} instead of {wanted[step]}")
        after = min(self.folder.losses(name)) - 1
        ours, theirs = self.figures(name, after), self.figures(reference, after)
        for key in ours.keys() & theirs.keys():
            if key[1] in ("targets", "document_squares", "samples_of_files", "targets_of_files") and ours[key] != theirs[key]:
                raise Fault(f"{what}: {key[1]}", f"step {key[0]}: {ours[key]} instead of {theirs[key]}")
            if key[1] == "val_loss" and abs(ours[key] / theirs[key] - 1) > limits[0]:
                raise Fault(f"{what}: val_loss is not near", f"step {key[0]}: {ours[key]} instead of {theirs[key]}")
