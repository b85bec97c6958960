#!/usr/bin/env python3
"""Kills all ranks at random moments, saves included, and goes on each time with the same command at another rank count and ZeRO stage. After
every kill the newest checkpoint must be whole and have the bits of a run that was never killed; so must the losses and the state at the end.
    kill_resume.py [--kills 50] [--seed N]"""
import argparse
import collections
import glob
import os
import random
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

STEPS = 60
COMMON = {"run__steps": STEPS, "run__reproducible": True, "run__threads": 1, "batch__global": 12}


class Reference:
    """The run that nobody disturbs, with all its checkpoints."""

    def __init__(self, folder):
        self.folder, self.digests = folder, {}
        folder.train("reference", 1, zero__stage=0, checkpoint__every=1, checkpoint__keep=0, **COMMON)
        self.losses = folder.losses("reference")
        if sorted(self.losses) != list(range(1, STEPS + 1)) or len(set(self.losses.values())) != STEPS or self.state(1) == self.state(2):
            sys.exit(f"FAIL the reference did not train: {self.losses}")

    def state(self, step):
        if step not in self.digests:
            self.digests[step] = runs.state_digests(f"{self.folder.run('reference')}/checkpoints/step-{step:08d}")
        return self.digests[step]


def partials(root):
    return glob.glob(root + "/step-*.partial")


def link(root):
    try:
        return os.readlink(root + "/latest")
    except OSError:
        return ""


def aim(chance, run, root, moment):
    """Waits for the moment of the kill, or the end of the run."""
    ended = lambda: run.process.poll() is not None
    first, before = run.steps_done(), link(root)
    if moment == "start":  # MPI's start, the reading of the checkpoint, deck.toml and metrics.jsonl
        time.sleep(chance.uniform(0, 0.35))
    elif moment == "steps":
        runs.wait_until(lambda: ended() or run.steps_done() not in (0, first), "a step")
        time.sleep(chance.uniform(0, 0.2))
    elif moment == "save":  # shards and the index are being written
        runs.wait_until(lambda: ended() or partials(root), "a save to begin", pause=0.0002)
        time.sleep(chance.uniform(0, 0.008))
    elif moment == "commit":  # the link has just moved: old checkpoints are being removed, or the next save begins
        runs.wait_until(lambda: ended() or link(root) != before, "a checkpoint", pause=0.0002)
        time.sleep(chance.uniform(0, 0.004))


def layout(chance):
    ranks = chance.choice([1, 2, 2, 2, 3])
    return ranks, {"zero__stage": chance.randrange(4), "checkpoint__every": chance.choice([1, 1, 2]), "checkpoint__keep": chance.choice([1, 2])}


def check_after_kill(reference, root, number):
    """The checkpoint that the next start will find has the right bits."""
    name = link(root)
    if not name:  # no checkpoint yet, or killed between the first one's rename and its link
        whole = [path for path in glob.glob(root + "/step-*") if not path.endswith(".partial")]
        if not whole:
            return True
        name = os.path.basename(max(whole))
    return runs.same(f"kill {number}: {name}", runs.state_digests(f"{root}/{name}"), reference.state(int(name[-8:])))


def finish(reference, folder, name, chance):
    """Without a kill to the end: losses of all steps and the state are those of the reference."""
    ranks, keys = layout(chance)
    folder.train(name, ranks, **keys, **COMMON)
    good = runs.same(name + " losses", folder.losses(name), reference.losses)
    good &= runs.same(name + " state", folder.hashes(name), reference.state(STEPS))
    left = partials(folder.run(name) + "/checkpoints")
    if left:
        print(f"FAIL {name}: {left} was left behind")
    return good and not left


def kill_many(folder, chance, kills):
    reference = Reference(folder)
    good, lives, done, moments = True, 1, 0, collections.Counter()
    last = ""
    while done < kills and good:
        name = f"life{lives}"
        root = folder.run(name) + "/checkpoints"
        ranks, keys = layout(chance)
        moment = chance.choices(["start", "steps", "save", "commit"], [15, 25, 40, 20])[0]
        run = folder.start(name, ranks, **keys, **COMMON)
        aim(chance, run, root, moment)
        if run.kill():
            done += 1
            moments[moment] += 1
            moments["with a save under way"] += bool(partials(root))
            good &= check_after_kill(reference, root, done)
            last = f"kill {done} ({moment}, {ranks} ranks, {keys})"
        elif run.process.returncode != 0:
            print(f"FAIL after {last}: {ranks} ranks, {keys}: status {run.process.returncode}\n{run.output()[-3000:]}")
            return False
        else:  # the run was done before its kill: what came out of all kills before is compared, and a new life begins
            good &= finish(reference, folder, name, chance)
            lives += 1
    good = good and finish(reference, folder, f"life{lives}", chance)
    print(f"{done} kills in {lives} runs: {dict(moments)}")
    if moments["with a save under way"] < kills // 10:
        print("FAIL too few kills came in the middle of a save")
        good = False
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    begin = time.time()
    with runs.Folder() as folder:
        good = kill_many(folder, random.Random(options.seed), options.kills)
    print(f"{'ok' if good else 'FAIL'}: {time.time() - begin:.0f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
