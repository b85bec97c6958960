#!/usr/bin/env python3
"""A run under tessera supervise, with copies of its state in the memory of others and no checkpoint, meets drawn faults: a rank is killed or has a fault of memory, is stopped for good, or is slow for a while. It goes
on each time, from memory, and ends with the bits of a run that nobody disturbed. At a landing two faults on 3 ranks; with TESSERA_TEST_FULL=1 one each 29 s for 30 minutes on
32 ranks, whose steps are compared with those of as long without faults, and then 1,000 on 2 ranks as fast as they come. TESSERA_CHAOS="RANKS SECONDS FAULTS PAUSE" is another size."""
import json
import os
import random
import signal
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402
import supervise as supervised  # noqa: E402

FULL = bool(os.environ.get("TESSERA_TEST_FULL"))
DRAW = int(os.environ.get("TESSERA_TEST_DRAW", "1"))
KEYS = {**runs.ENDLESS, "run__reproducible": True, "run__threads": 1, "checkpoint__every": 0, "checkpoint__neighbour_every": 1, "checkpoint__allow_same_node": True,
        "watchdog__limit": "3 s", "watchdog__action": "end"}
check = runs.Checks()


def starts(run):
    return run.output().count("is running")


def meet(run, kind, chance):
    """One fault, and what follows it."""
    ranks = supervised.ranks_of(run)
    before, step = starts(run), run.steps_done()
    victim = chance.choice(ranks)
    if kind == "slow":
        for _ in range(5):
            os.kill(victim, signal.SIGSTOP)
            time.sleep(0.1)
            os.kill(victim, signal.SIGCONT)
            time.sleep(0.1)
        runs.wait_until(lambda: run.steps_done() > step or run.ended(), "a step")
        return
    os.kill(victim, chance.choice([signal.SIGKILL, signal.SIGSEGV]) if kind == "kill" else signal.SIGSTOP)
    runs.wait_until(lambda: starts(run) > before or run.ended(), "the next start", pause=0.01)
    runs.wait_until_gone(ranks)


def play(folder, name, ranks, faults, seconds, pause):
    """So many faults, or faults for so many seconds, one each `pause`. The steps that were made, and the output."""
    chance = random.Random(DRAW)
    keys = {**KEYS, "batch__global": max(4, ranks), "checkpoint__neighbour_folder": folder.path}
    run = supervised.supervise(folder, name, ["-n", str(ranks)], **keys)
    met = {"kill": 0, "stop": 0, "slow": 0}
    try:
        run.wait_for_step(4)
        begin, first = time.monotonic(), run.steps_done()
        kinds = ["kill", ("stop", "slow")[DRAW % 2]] if faults == 2 else None
        for number in range(faults or 10**9):
            if seconds and time.monotonic() - begin + pause > seconds:
                break
            time.sleep(pause)
            runs.wait_until(lambda: run.output().count("is in the memory of two ranks") > starts(run) or run.ended(), "copies of this start's own", pause=0.01)
            if run.ended():
                break
            kind = kinds[number] if kinds else chance.choices(("kill", "stop", "slow"), (6, 1 if pause else 0, 3 if pause else 0))[0]
            meet(run, kind, chance)
            met[kind] += 1
        if seconds:
            time.sleep(max(0.0, seconds - (time.monotonic() - begin)))
        made = run.steps_done() - first
        ended = run.ended()
        run.process.send_signal(signal.SIGTERM)
        status, output = run.wait(), run.output()
    finally:
        if not run.ended():
            run.kill()
    check(f"{ranks} ranks, {met}: the run outlives them, and saves when it is asked to", not ended and status == 75, output)
    losses = met["kill"] + met["stop"]
    check(f"{ranks} ranks: each start after a loss went on from memory", output.count("resumed from in-memory replicas") == losses == starts(run) and
          "resumed from /" not in output, output)
    step = int(os.readlink(folder.latest(name))[-8:])
    expected, state = runs.Reference(folder, **{key: value for key, value in keys.items() if not key.startswith(("checkpoint", "watchdog"))}).at(step)
    check(f"{ranks} ranks: the losses of an undisturbed run", runs.same("losses", folder.losses(name), expected))
    check(f"{ranks} ranks: the state of an undisturbed run", runs.same("state", folder.hashes(name), state))
    with open(folder.run(name) + ".json") as text:
        rows = [row for row in json.load(text)["starts"] if row.get("seconds_to_first_step") is not None]
    if rows:
        medians = {key: statistics.median(row[key] for row in rows if row.get(key) is not None) for key in ("seconds_from_last_step", "seconds_to_start", "seconds_to_first_step", "steps_again")}
        print(f"{len(rows)} losses on {ranks} ranks, medians: " + ", ".join(f"{key} {value:.3f}" for key, value in medians.items()))
    return made


def main():
    with runs.Folder() as folder:
        if size := os.environ.get("TESSERA_CHAOS"):
            ranks, seconds, faults, pause = (float(word) for word in size.split())
            play(folder, "sized", int(ranks), int(faults), seconds, pause)
        elif FULL:
            calm = play(folder, "calm", 32, 0, 300, 1e6) / 300
            made = play(folder, "half-an-hour", 32, 0, 1800, 29) / 1800
            print(f"{made / calm:.3f} of the undisturbed steps")
            play(folder, "thousand", 2, 1000, 0, 0)
        else:
            play(folder, "two", 3, 2, 0, 0)
    sys.exit(0 if check.good else 1)


if __name__ == "__main__":
    main()
