#!/usr/bin/env python3
"""Chains of runs that are killed and stopped by signals at many moments, saves included, and go on each time with the same command at another rank
count, ZeRO stage and recompute. After every end the newest checkpoint must be whole and have the bits of a run that nobody disturbed; so must the losses and
the state at the end of the chain. Moments are states of the run's folder, in which the ranks are frozen before they are killed: no speed of the
machine decides what is met.
    kill_resume.py [--chains 2] [--ends 10] [--seed 1]      ends: kills and signals of each chain
TESSERA_TEST_FULL=1: 15 chains with 60 ends"""
import argparse
import collections
import glob
import os
import random
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

COMMON = {**runs.ENDLESS, "run__reproducible": True, "run__threads": 1, "batch__global": 12}
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
    runs.wait_until(lambda: run.steps_done() > first or run.ended(), "a step")
    if kind == "step":
        time.sleep(chance.uniform(0, 0.05))
        return kind
    moment = chance.choice(list(MOMENTS))
    return moment if catch(run, moment, root) else "after " + moment


class Chain:
    """Starts of one folder, each of which but the last is ended from outside."""

    def __init__(self, folder, reference, number, chance):
        self.folder, self.reference, self.chance, self.name = folder, reference, chance, f"chain{number}"
        self.root = folder.run(self.name) + "/checkpoints"
        self.said = collections.Counter()
        self.good = True

    def layout(self):
        ranks = self.chance.choice([1, 2, 2, 2, 3])
        keys = {"zero__stage": self.chance.randrange(4), "checkpoint__every": self.chance.choice([1, 1, 2]), "checkpoint__keep": self.chance.choice([1, 2]),
                "activation__recompute": self.chance.choice(["none", "selective", "full", "auto"])}
        return ranks, {**COMMON, **keys}

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
        return not name or runs.same(f"{self.name}: {name} after {what}", runs.state_digests(f"{self.root}/{name}"), self.reference.state(int(name[-8:])))

    def finish(self):
        """Without an end from outside, some steps more: all losses and the state are those of a run that was never disturbed."""
        ranks, keys = self.layout()
        name = self.newest()
        last = (int(name[-8:]) if name else 0) + LAST
        self.folder.train(self.name, ranks, **{**keys, "run__steps": last})
        good = runs.same(self.name + " losses", self.folder.losses(self.name), self.reference.losses(last))
        good &= runs.same(self.name + " state", self.folder.hashes(self.name), self.reference.state(last))
        left = entries(self.root, "*.partial")
        if left:
            print(f"FAIL {self.name}: {left} was left behind")
        return good and not left


class Reference:
    """A run that nobody disturbs, with all its checkpoints; made longer as it is asked for later steps."""

    def __init__(self, folder):
        self.folder, self.steps, self.digests = folder, 0, {}

    def reach(self, step):
        if step > self.steps:
            self.steps = step + 50
            self.folder.train("reference", 1, **{**COMMON, "zero__stage": 0, "checkpoint__every": 1, "checkpoint__keep": 0, "run__steps": self.steps})

    def state(self, step):
        if step not in self.digests:
            self.reach(step)
            self.digests[step] = runs.state_digests(f"{self.folder.run('reference')}/checkpoints/step-{step:08d}")
        return self.digests[step]

    def losses(self, last):
        self.reach(last)
        return {step: loss for step, loss in self.folder.losses("reference").items() if step <= last}


def main():
    full = bool(os.environ.get("TESSERA_TEST_FULL"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=15 if full else 2)
    parser.add_argument("--ends", type=int, default=60 if full else 10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    good, said = True, collections.Counter()
    with runs.Folder() as folder:
        reference = Reference(folder)
        if reference.state(1) == reference.state(2) or len(set(reference.losses(50).values())) != 50:
            sys.exit("FAIL the reference did not train")
        for number in range(options.chains):
            chain = Chain(folder, reference, number, random.Random(f"{options.seed} {number}"))
            good &= all(chain.end() for _ in range(options.ends)) and chain.finish()
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
