#!/usr/bin/env python3
"""Chains of runs that are killed and stopped by signals at many moments, saves included, and go on each time with the same command at another layout.
A chain draws what it trains (model, adapters, frozen tensors, experts, data with masks and documents or a mixture, axes that are part of the arithmetic);
every second one has data that spikes, and a guard that skips such steps or goes back; of some of these checkpoints vanish, as if their saves
had failed, and some go on in the middle with another checkpoint.every or checkpoint.keep. Each start draws its ranks, mesh, ZeRO stage,
offload, recompute, the way of its saves, copies in the memory of nodes, and whether copies are compared or steps computed again. After every end the newest checkpoint must be whole and have the
bits of a run that nobody disturbed; so must the losses and the state at the end of the chain. Moments are states of the run's folder, in which the ranks
are frozen before they are killed: no speed of the machine decides what is met.
    kill_resume.py [--chains 2] [--ends 10] [--seed N] [--spikes]     ends: kills and signals of each chain; N is TESSERA_TEST_DRAW, which scripts/test makes of the commit;
                                                                      --spikes: all chains have data that spikes
TESSERA_TEST_FULL=1: 200 chains with 12 ends"""
import argparse
import collections
import glob
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

COMMON = {**runs.ENDLESS, "run__reproducible": True, "run__threads": 1, "batch__global": 12, "model__heads": 4, "model__kv_heads": 4}
# What a chain trains. A vocabulary that neither tp nor a padding of blocks divides is among them.
MODELS = [
    {"model__vocab": 257, "model__tied": False}, {"model__vocab": 263, "model__tied": False, "model__qk_norm": True, "precision__compute": "bf16"}, {"model__vocab": 259, "model__tied": True},
    {"model__vocab": 257, "model__tied": False, "lora__rank": 2}, {"model__vocab": 263, "model__tied": False, "lora__rank": 3, "lora__targets": '["wq", "wv", "w_down"]', "precision__compute": "bf16"},
    {"model__vocab": 257, "model__tied": False, "model__freeze": '["layers.?.mlp.*"]'}, {"model__vocab": 259, "model__tied": False, "model__freeze": '["embedding.*", "layers.0.*"]'},
    {"model__vocab": 257, "model__tied": False, "model__experts": 4, "model__expert_ff_width": 24, "model__shared_ff_width": 16},
    {"model__vocab": 257, "model__tied": False, "optimizer__type": "muon"},
]
AXES = [{}, {}, {"mesh__tp": 2}, {"mesh__cp": 2}]  # which are part of the arithmetic; with experts also ep
LAST = 3  # steps of a chain after its last end
INTERRUPTED = 75  # exit status


def entries(root, pattern):
    return sorted(os.path.basename(path) for path in glob.glob(f"{root}/{pattern}"))


def link(root):
    try:
        return os.readlink(root + "/latest")
    except OSError:
        return ""


def written(root):
    """Files of the save that is under way."""
    return [file for partial in entries(root, "step-*[0-9].partial") for file in entries(f"{root}/{partial}", "*")]


def whole(root):
    return [name for name in entries(root, "step-*") if not name.endswith(".partial")]


# What the folder of checkpoints looks like at each moment. Those of a save last for milliseconds or less, so a look may come too late: then the next
# save is met, and after so many of them the run is ended where it is.
MOMENTS = {
    "a save has begun": lambda root: entries(root, "step-*[0-9].partial"),
    "shards are being written": lambda root: any(file.startswith("shard-") for file in written(root)),
    "the index is being written": lambda root: "checkpoint.h5" in written(root),
    "renamed, and not yet the latest": lambda root: whole(root) and max(whole(root)) != link(root),
    "an old checkpoint is being removed": lambda root: entries(root, "step-*.removed.partial"),
}
SAVES = 20


def freeze(run, pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def catch(run, moment, root):
    """Leaves the ranks frozen in the moment, and says whether it was met."""
    condition, first = MOMENTS[moment], run.steps_done()
    while not run.ended():
        runs.wait_until(lambda: condition(root) or run.steps_done() > first + SAVES or run.ended(), moment, pause=0)
        pids = run.ranks()
        freeze(run, pids, signal.SIGSTOP)
        if condition(root):
            return True
        if run.steps_done() > first + SAVES:
            return False
        freeze(run, pids, signal.SIGCONT)
    return False


def aim(chance, run, root):
    """Waits for a moment of the run, which is named. In a moment of a save the ranks are frozen."""
    kind = chance.choices(["start", "step", "save"], [15, 25, 60])[0]
    first = run.steps_done()
    if kind == "start":  # MPI's start, the reading of the checkpoint, deck.toml and metrics.jsonl
        time.sleep(chance.uniform(0, 0.35))  # a random moment, of which nothing depends
        return kind
    runs.wait_until(lambda: run.steps_done() not in (0, first) or run.ended(), "a step")  # a run that goes back for long is not beyond the first
    if kind == "step":
        time.sleep(chance.uniform(0, 0.05))
        return kind
    moment = chance.choice(list(MOMENTS))
    return moment if catch(run, moment, root) else "after " + moment


class Chain:
    """Starts of one folder, each of which but the last is ended from outside."""

    def __init__(self, folder, number, chance, spikes):
        self.folder, self.chance, self.name = folder, chance, f"chain{number}"
        model, self.axes = chance.choice(MODELS), chance.choice(AXES + [{"mesh__ep": 2}] * 4)
        if ("mesh__ep" in self.axes) != ("model__experts" in model):
            self.axes = {"mesh__ep": 2} if "model__experts" in model and chance.random() < 0.5 else {}
        spikes = {} if not spikes else {"guards__spike": chance.choice(["rollback", "rollback", "skip"]), "guards__skip_limit": chance.choice([0, 2]), "guards__window": chance.choice([8, 12]), "guards__threshold": chance.choice([8.0, 8.0, 12.0]), "guards__rollback_limit": 500,
                                        "data__train": folder.spiking, "optimizer__learning_rate": 1e-2}
        if spikes:  # where a run goes back to follows from these and its steps: they must not differ from start to start
            spikes.update(checkpoint__every=chance.choice([1, 2, 3, 5]), checkpoint__keep=chance.choice([0, 0, 1, 2]))
        if spikes.get("guards__spike") == "skip":
            spikes["guards__skip_limit"] = 500  # in a row
        self.other_keys = other_keys(chance, spikes) if spikes and chance.random() < 0.6 else None
        self.spikes = bool(spikes)
        self.keys = {**COMMON, **model, **(spikes or data_of(folder, chance))}
        self.reference = Reference(folder, number, self.keys, self.axes)
        self.undisturbed = self.reference
        if spikes:
            self.undisturbed = Reference(folder, f"{self.name}-end", self.keys, self.axes, more=0, saves=self.keys)
        self.root = folder.run(self.name) + "/checkpoints"
        self.said = collections.Counter()
        self.good = True

    def layout(self):
        """Ranks and keys of a start that the program takes: what it refuses, it refuses by name, and another is drawn."""
        while True:
            ranks, keys = self.draw()
            asked = subprocess.run([runs.TESSERA, "deck", "check", self.folder.deck, "--ranks", str(ranks), *runs.overrides({**keys, "run__output_dir": "x"})],
                                   stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if asked.returncode == 0:
                return ranks, keys
            if asked.returncode != 2:
                sys.exit(f"FAIL {self.name}: deck check ended with {asked.returncode}: {asked.stderr}")

    def draw(self):
        chance = self.chance
        keys = {"zero__stage": chance.randrange(4), "checkpoint__every": chance.choice([1, 1, 2]), "checkpoint__keep": chance.choice([1, 2]),
                "activation__recompute": chance.choice(["none", "selective", "full", "auto"])}
        more = {"checkpoint__async": [True, False], "checkpoint__staging": [json.dumps(self.folder.run("staging")), '""'], "checkpoint__files": ["2", '"rank"'],
                "zero__offload_optimizer__device": ["host", "nvme"], "zero__offload_param__device": ["host"], "zero__param_persistence_threshold": [0],
                "activation__offload": ["host"], "mesh__pp": [2], "mesh__replicate": [2], "run__lanes": ["threads"], "checkpoint__weights_every": [1],
                "checkpoint__neighbour_every": [1, 2], "guards__digest_every": [1, 3], "guards__replay_every": [4]}
        for key, values in more.items():
            if chance.random() < 0.25:
                keys[key] = chance.choice(values)
        if "checkpoint__neighbour_every" in keys:
            keys.update(checkpoint__neighbour_folder=json.dumps(self.folder.run("memory")), checkpoint__allow_same_node=True)
        if self.spikes:
            keys.update(checkpoint__every=self.keys["checkpoint__every"], checkpoint__keep=self.keys["checkpoint__keep"])
        ranks = chance.choice([1, 1, 2, 2, 2, 3, 5, 7])
        for axis in ("mesh__pp", "mesh__tp", "mesh__cp", "mesh__ep", "mesh__replicate"):
            ranks *= {**keys, **self.axes}.get(axis, 1)
        if ranks > 7:
            return self.draw()
        return ranks, {**self.keys, **self.axes, **keys}

    def newest(self):
        """The checkpoint that the next start finds. Before there is a link, or between a rename and its link, it is the newest that is whole."""
        return link(self.root) or max(whole(self.root), default="")

    def end(self):
        """One start and its end; whether the chain is still sound."""
        ranks, keys = self.layout()
        run = self.folder.start(self.name, ranks, **keys)
        moment = aim(self.chance, run, self.root)
        number = self.chance.choices([signal.SIGKILL, *runs.STOP_SIGNALS], [70, 10, 10, 10])[0]
        if moment == "start":  # the signals have their own tests of the first moments
            number = signal.SIGKILL
        what = f"{signal.Signals(number).name}, {moment}, {ranks} ranks, {keys}"
        if run.ended():
            print(f"FAIL {self.name}: ended by itself with status {run.process.returncode} ({what})\n{run.output()[-3000:]}")
            return False
        self.said[f"{signal.Signals(number).name} {moment}"] += 1
        if number == signal.SIGKILL:
            run.kill()
        else:
            pids = run.everybody()
            run.signal_ranks(number)
            freeze(run, pids, signal.SIGCONT)
            if run.wait() != INTERRUPTED:
                print(f"FAIL {self.name}: status {run.process.returncode} ({what})\n{run.output()[-3000:]}")
                return False
            runs.wait_until_gone(pids)
        name = self.newest()
        if self.spikes:  # what stands now may be of a way that the undisturbed run has left again: that it is whole is seen here, its bits at the end of the chain
            good = not name or bool(runs.state_digests(f"{self.root}/{name}"))
            self.lose()
            return good
        return not name or runs.same(f"{self.name}: {name} after {what}", runs.state_digests(f"{self.root}/{name}"), self.reference.state(int(name[-8:])))

    def lose(self):
        """A checkpoint between two others is gone, as if its save had failed and the next one had not: a run that goes back there makes it again from the one before."""
        every, names = self.keys["checkpoint__every"], whole(self.root)
        steps = [int(name[-8:]) for name in names]
        between = [name for name, step in zip(names, steps) if step % every == 0 and {step - every, step + every} <= {*steps} and name != link(self.root)]
        if self.keys["checkpoint__keep"] == 0 and between and self.chance.random() < 0.3:
            shutil.rmtree(f"{self.root}/{self.chance.choice(between[-3:])}")
            self.said["a checkpoint is gone"] += 1

    def play(self, ends):
        """So many ends. With other keys the chain is finished twice: where they change, and with them."""
        before = ends // 2 if self.other_keys else 0
        if before and not (all(self.end() for _ in range(before)) and self.finish()):
            return False
        if before:
            for keys in (self.keys, self.undisturbed.keys):
                keys.update(self.other_keys)
            self.said[f"{self.keys['guards__spike']}: goes on with another checkpoint.every or checkpoint.keep"] += 1
        return all(self.end() for _ in range(ends - before)) and self.finish()

    def reached(self):
        """The furthest step from which the chain has gone back: a run that ends before does not see what is there."""
        try:
            with open(f"{self.root}/line.json") as file:
                return json.load(file)[-1].get("way_back", {}).get("spikes", {}).get("reached", 0)
        except (OSError, ValueError):
            return 0

    def finish(self):
        """Without an end from outside, some steps more: all losses and the state are those of a run that was never disturbed."""
        ranks, keys = self.layout()
        name = self.newest()
        last = max(int(name[-8:]) if name else 0, self.reached()) + LAST  # no start has come there yet
        self.folder.train(self.name, ranks, **{**keys, "run__steps": last})
        good = runs.same(self.name + " losses", self.folder.losses(self.name), self.undisturbed.losses(last))
        good &= runs.same(self.name + " state", self.folder.hashes(self.name), self.undisturbed.state(last))
        if self.spikes:
            kind = self.keys["guards__spike"]
            self.said[f"{kind}: spikes"] = sum(row.get("skipped", 0) > 0 or "went_back" in row for row in self.folder.metrics(self.name))
        left = entries(self.root, "*.partial")
        if left:
            print(f"FAIL {self.name}: {left} was left behind")
        return good and not left


class Reference:
    """A run that nobody disturbs, with all its checkpoints, or those that `saves` asks for; made longer as it is asked for later steps, by so many more."""

    def __init__(self, folder, number, keys, axes, more=20, saves=None):
        self.folder, self.name, self.steps, self.digests, self.more = folder, f"reference{number}", 0, {}, more
        every = {"checkpoint__every": 1, "checkpoint__keep": 0} if saves is None else {key: saves[key] for key in ("checkpoint__every", "checkpoint__keep")}
        self.keys, self.ranks = {**keys, **axes, "zero__stage": 0, **every}, 1
        for size in axes.values():
            self.ranks *= size

    def reach(self, step):
        if step > self.steps:
            self.steps = step + self.more
            self.folder.train(self.name, self.ranks, **{**self.keys, "run__steps": self.steps})

    def state(self, step):
        if step not in self.digests:
            self.reach(step)
            self.digests[step] = runs.state_digests(f"{self.folder.run(self.name)}/checkpoints/step-{step:08d}")
        return self.digests[step]

    def losses(self, last):
        self.reach(last)
        return {step: loss for step, loss in self.folder.losses(self.name).items() if step <= last}


def other_keys(chance, keys):
    """Keys with which a run still finds what it goes back to: it has kept everything so far, or keeps less from now on."""
    every, keep = keys["checkpoint__every"], keys["checkpoint__keep"]
    if keep > 0:
        return {"checkpoint__keep": 1}
    return {"checkpoint__every": chance.choice([n for n in (1, 2, 3, 5, 7) if n >= every]), "checkpoint__keep": chance.choice([0, 1, 2])}


def data_of(folder, chance):
    """Plain tokens, a mixture of two files, or prompts and completions, whose masks and documents count."""
    kind = chance.choice(["plain", "mixture", "masked", "documents"])
    if kind == "plain":
        return {}
    if kind == "mixture":
        return {"data__train": json.dumps([folder.data, folder.second]), "data__weights": "[0.7, 0.3]"}
    return {"data__train": json.dumps(folder.masked), **({"data__document_mask": True} if kind == "documents" else {})}


def make_data(folder):
    os.mkdir(folder.run("staging"))
    os.mkdir(folder.run("memory"))
    # Text with some noise, and a sample among some hundred that is nothing else.
    length, folder.spiking, noise = 12, os.path.join(folder.path, "spiking.bin"), random.Random(9)
    tokens = [noise.randrange(10, 200) if i // length % 71 == 40 or noise.random() < 0.01 else i % 7 for i in range(600 * length + 1)]
    with open(folder.spiking, "wb") as out:
        out.write(struct.pack(f"<{len(tokens)}H", *tokens))
    folder.second, folder.masked = os.path.join(folder.path, "second.bin"), os.path.join(folder.path, "masked", "train.h5")
    with open(folder.data, "rb") as tokens, open(folder.second, "wb") as out:
        out.write(tokens.read()[2000:22000])
    pairs, draw = os.path.join(folder.path, "pairs.jsonl"), random.Random(5)
    with open(pairs, "w") as out:
        for _ in range(300):
            out.write(json.dumps({"prompt": "?" * draw.randrange(3, 20), "completion": draw.choice("abcdef") * draw.randrange(2, 20)}) + "\n")
    subprocess.run([runs.TESSERA, "tokenize", "--tokenizer", "byte", pairs, os.path.dirname(folder.masked)], stdin=subprocess.DEVNULL, capture_output=True, check=True)


def main():
    full = bool(os.environ.get("TESSERA_TEST_FULL"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=200 if full else 2)
    parser.add_argument("--ends", type=int, default=12 if full else 10)
    parser.add_argument("--spikes", action="store_true")
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TESSERA_TEST_DRAW", "1")))
    options = parser.parse_args()
    good, said = True, collections.Counter()
    with runs.Folder() as folder:
        make_data(folder)
        for number in range(options.chains):
            chain = Chain(folder, number, random.Random(f"{options.seed} {number}"), options.spikes or number % 2 == 0)
            print(f"{chain.name} of seed {options.seed}: {chain.keys | chain.axes}", flush=True)
            if chain.reference.state(1) == chain.reference.state(2) or len(set(chain.reference.losses(20).values())) != 20:
                sys.exit("FAIL the reference did not train")
            fine = chain.play(options.ends)
            good &= fine
            for name in (chain.name, chain.reference.name, f"reference{chain.name}-end") if fine else ():
                shutil.rmtree(folder.run(name), ignore_errors=True)
            said += chain.said
    for moment, count in sorted(said.items()):
        print(f"{count:5d}  {moment}")
    met = {moment for moment in MOMENTS if any(what.endswith(" " + moment) for what in said)}
    # Which are met is a matter of luck; that a save is met at all is not: it lasts as long as a step does here.
    if not met:
        print("FAIL no end came in the middle of a save")
        good = False
    print(f"{'ok' if good else 'FAIL'}: seed {options.seed}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
