#!/usr/bin/env python3
"""tessera_play: what is played in a launch that has played other things is what a process of its own comes to, to the bit; and nothing is left of an item
in the next. Decks of five kinds are played in two orders, which are drawn (--seed)."""
import argparse
import os
import random
import signal
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "resume"))
import players  # noqa: E402
import runs  # noqa: E402

check = runs.Checks()
COMMON = {"run__steps": 3, "learning_rate__warmup_steps": 1, "batch__global": 6, "checkpoint__every": 2, "checkpoint__keep": 0}
# name: (ranks, keys). Some are not reproducible, and have the same bits in a launch as in a process by having the same threads and layouts alone.
DECKS = {
    "fast": (1, {"run__threads": 2, "precision__compute": "fp32", "kernels__pack_weights": True}),
    "sharded": (3, {"zero__stage": 3, "run__reproducible": True, "zero__param_persistence_threshold": 64, "run__lanes": "threads"}),
    "pipeline": (4, {"mesh__pp": 2, "zero__stage": 1, "run__lanes": "threads", "run__reproducible": True, "zero__offload_optimizer__device": "nvme"}),
    "experts": (2, {"model__experts": 4, "model__experts_per_token": 2, "model__expert_ff_width": 24, "mesh__ep": 2, "run__reproducible": True}),
    "tensor": (2, {"mesh__tp": 2, "precision__compute": "fp32", "run__threads": 1, "model__qkv_bias": True}),
}
USAGE, DATA, NUMERICS = 2, 3, 8


def digests(folder, name):
    """Of every checkpoint that the run has saved."""
    checkpoints = os.path.join(folder.run(name), "checkpoints")
    return {step: runs.state_digests(os.path.join(checkpoints, step)) for step in sorted(os.listdir(checkpoints)) if step.startswith("step-")}


def same_bits_in_any_order(folder, chance):
    names = list(DECKS)
    for deck, (ranks, keys) in DECKS.items():
        folder.train(f"own-{deck}", ranks, own_process=True, **COMMON, **keys)
    for order in range(2):
        chance.shuffle(names)
        for deck in names:
            ranks, keys = DECKS[deck]
            folder.train(f"played{order}-{deck}", ranks, **COMMON, **keys)
            what = f"{deck} after {' '.join(names[:names.index(deck)]) or 'nothing'}"
            good = runs.same(what, digests(folder, f"played{order}-{deck}"), digests(folder, f"own-{deck}"))
            check(f"{what}: the state of a process of its own", good)
            check(f"{what}: its losses", folder.losses(f"played{order}-{deck}") == folder.losses(f"own-{deck}"))


def faults_as_of_a_process(folder):
    """The status and the words of a command that is refused, and what comes after it."""
    def words(text):  # options that exclude each other stand in any order on a page of help
        return sorted(text.split())

    def both(what, arguments, ranks, status):
        played, own = (runs.tessera(*arguments, ranks=ranks, own_process=alone) for alone in (False, True))
        check(f"{what}: status {status}", played.returncode == own.returncode == status, f"{played.returncode} and {own.returncode}\n{played.stderr}")
        check(f"{what}: its words", words(played.stdout) == words(own.stdout) and runs.own_lines(played.stderr) == runs.own_lines(own.stderr), f"{played.stdout}{played.stderr}\n-- own:\n{own.stdout}{own.stderr}")

    both("a key that is none", folder.arguments("fault", zero__stag=1), 1, USAGE)
    both("a key that is none, of three ranks", folder.arguments("fault", zero__stag=1), 3, USAGE)
    both("a file that is none", folder.arguments("fault", data__train=folder.path + "/none.bin"), 2, DATA)
    both("a command that is none", ["trian"], 1, USAGE)
    both("a page of help", ["plan", "--help"], 1, 0)
    both("a deck that is checked", ["deck", "check", folder.deck], 1, 0)
    both("a plan", ["plan", folder.deck, "--ranks", "4", "--json", "run.threads=1"], 1, 0)
    launch = players.launches.get(runs.TESSERA)
    check("none of them has ended the launch", launch is not None and launch.process.poll() is None)


def environment_of_each(folder):
    """Variables and the working folder are the item's own."""
    keys = {**COMMON, "run__steps": 1}
    os.environ["TESSERA_RANKS_PER_NODE"] = "1"
    apart = folder.train("apart", 2, **keys)
    del os.environ["TESSERA_RANKS_PER_NODE"]
    together = folder.train("together", 2, **keys)
    check("pretended nodes are those of one item", "shared memory" not in apart.stderr and "collectives by shared memory" in together.stderr, apart.stderr + together.stderr)
    status = os.path.join(folder.path, "status")
    os.environ["TESSERA_STATUS_FILE"] = status
    folder.train("reported", 2, **keys)
    del os.environ["TESSERA_STATUS_FILE"]
    said = open(status).read()
    os.remove(status)
    folder.train("unreported", 1, **keys)
    check("the end is reported where that is asked for", said == "status 0\nsaved 1\n" and not os.path.exists(status), said)
    before = os.getcwd()
    os.chdir(folder.path)
    done = runs.tessera("deck", "check", "deck.toml")
    os.chdir(before)
    check("a name is one of the item's folder", done.returncode == 0, done.stderr)


def nothing_is_left(folder):
    """Threads and open files of a launch do not grow."""
    keys = {**COMMON, "run__steps": 1, "run__lanes": "threads", "run__reproducible": True, "zero__stage": 3}
    counts = []
    for number in range(6):
        for ranks in (2, 4):
            folder.train(f"again{number}-{ranks}", ranks, **keys)
        answer = players.launches[runs.TESSERA].answered
        counts.append((answer["threads"], answer["files"]))
    check("threads and open files of a rank do not grow", len(set(counts[2:])) == 1, str(counts))


def ended_launch(folder):
    """What ends its process ends the launch with its status; what comes then is played in another."""
    keys = {**COMMON, "run__reproducible": True}
    done = runs.tessera(*folder.arguments("broken", **{**COMMON, "run__steps": 20, "optimizer__learning_rate": 1000, "optimizer__gradient_clipping": 0, "model__init_std": 10}), ranks=2)
    check("weights that overflow are a fault that ranks agree on", done.returncode == NUMERICS and "not finite" in done.stderr, f"{done.returncode} {done.stderr}")
    check("which ends no launch", players.launches[runs.TESSERA].process.poll() is None)
    launch = players.launches[runs.TESSERA]
    ranks = [pid for pid in players.descendants(launch.process.pid) if os.path.realpath(f"/proc/{pid}/exe") == os.path.realpath(players.beside(runs.TESSERA))]
    check("the launch has its ranks", len(ranks) == launch.ranks, str(ranks))
    metrics = os.path.join(folder.run("lost"), "metrics.jsonl")

    def kill_one():
        runs.wait_until(lambda: os.path.exists(metrics) and os.path.getsize(metrics) > 1000, "some steps")
        os.kill(min(ranks), signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    done = runs.tessera(*folder.arguments("lost", **{**keys, **runs.ENDLESS}), ranks=4)
    killer.join()
    check("an item whose rank is killed has failed", done.returncode not in (0, NUMERICS) and done.processor_seconds is None, f"{done.returncode} {done.stderr}")
    folder.train("after", 2, **keys)
    check("another launch plays what comes", players.launches[runs.TESSERA] is not launch)
    folder.train("after-own", 2, own_process=True, **keys)
    check("to the same bits", runs.same("after", digests(folder, "after"), digests(folder, "after-own")))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("TESSERA_TEST_DRAW", "1")))
    options = parser.parse_args()
    if not players.beside(runs.TESSERA):
        sys.exit(f"FAIL there is no tessera_play beside {runs.TESSERA}")
    with runs.Folder() as folder:
        same_bits_in_any_order(folder, random.Random(options.seed))
        faults_as_of_a_process(folder)
        environment_of_each(folder)
        nothing_is_left(folder)
        ended_launch(folder)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
