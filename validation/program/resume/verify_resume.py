#!/usr/bin/env python3
"""checkpoint.verify_resume: beside each save stand loss and gradient norm of the two steps after it; a run that goes on from there has them bit for bit on
other layouts, or ends with status 4 and names the step: where the figures, the data or the checkpoint beside them are others than they were.
    verify_resume.py [--device host|cuda]"""
import argparse
import json
import os
import shutil
import signal
import sys

import runs

check = runs.Checks()
COMMON = {"batch__global": 12, "run__reproducible": True, "checkpoint__verify_resume": True, "checkpoint__keep": 0, "learning_rate__schedule": "constant"}
USAGE, DAMAGED = 2, 4  # exit statuses


LAYOUTS = {
    "host": [(1, {}), (2, {"zero__stage": 3, "zero__param_persistence_threshold": 0}), (3, {"zero__stage": 1, "checkpoint__async": True}),
             (2, {"mesh__pp": 2, "run__lanes": "threads"}), (2, {"zero__stage": 2, "zero__offload_optimizer__device": "host"})],
    "cuda": [(2, {"zero__stage": 3, "zero__param_persistence_threshold": 0}), (2, {"zero__stage": 1, "checkpoint__async": True})],
}


def proof_path(folder, name, step):
    return f"{folder.run(name)}/checkpoints/step-{step:08d}/resume_proof.json"


def proof(folder, name, step):
    with open(proof_path(folder, name, step)) as text:
        return json.load(text)


def figures(folder, name, step):
    return {row["step"]: (row["loss"], row["grad_norm"]) for row in proof(folder, name, step)["steps"]}


def copy(folder, name, to):
    shutil.copytree(folder.run(name), folder.run(to), symlinks=True)


def output(done):
    return done.stdout + done.stderr


def check_proofs(folder, device):
    """What a run leaves, and what goes on from it."""
    folder.train("plain", 1, **{**COMMON, "checkpoint__verify_resume": False, "run__steps": 8})
    losses = folder.losses("plain")
    folder.train("run", 1, **COMMON, run__steps=4, checkpoint__every=2)
    check("the two steps after a save stand beside it, those after the last one too",
          figures(folder, "run", 2) == {s: losses[s] for s in (3, 4)} and figures(folder, "run", 4) == {s: losses[s] for s in (5, 6)})
    check("steps that are made for the proof alone are no steps of the run", sorted(folder.losses("run")) == [1, 2, 3, 4])
    for number, (ranks, keys) in enumerate(LAYOUTS[device]):
        name = f"resumed{number}"
        copy(folder, "run", name)
        done = folder.train(name, ranks, **COMMON, **keys, run__steps=8, checkpoint__every=1)
        steps = sorted(int(s[5:]) for s in os.listdir(folder.run(name) + "/checkpoints") if s.startswith("step-"))
        check(f"{ranks} ranks, {keys}: the resume is proven, before it saves anything, and proves the next ones",
              "the resume is proven: up to step 6" in output(done) and steps == [2, 4, 6, 7, 8] and folder.losses(name) == losses
              and figures(folder, name, 6) == {s: losses[s] for s in (7, 8)} and list(figures(folder, name, 8)) == [9, 10], output(done))
        check(f"{ranks} ranks, {keys}: the same state", runs.same("state", folder.hashes(name), folder.hashes("plain")))


def check_stop(folder):
    run = folder.start("stopped", 2, **{**COMMON, **runs.ENDLESS}, checkpoint__every=2)
    run.wait_for_step(3)
    run.signal_ranks(signal.SIGTERM, 0)
    status = run.wait()
    stopped = max(folder.losses("stopped"))
    check("a run that is stopped proves its last save", status == 75 and list(figures(folder, "stopped", stopped)) == [stopped + 1, stopped + 2], run.output())
    done = folder.train("stopped", 1, **COMMON, run__steps=stopped + 3)
    check("and goes on proven", f"the resume is proven: up to step {stopped + 2}" in output(done), output(done))


def check_refusals(folder):
    """Each: what is wrong, what makes it so, what is said."""
    def tamper(change):
        def write(name):
            there = proof(folder, name, 4)
            change(there)
            with open(proof_path(folder, name, 4), "w") as out:
                json.dump(there, out)
        return write

    def next_up(value):
        return value * (1 + 2**-52)

    def change_loss(there):
        there["steps"][0]["loss"] = next_up(there["steps"][0]["loss"])

    def change_second_norm(there):
        there["steps"][1]["grad_norm"] = next_up(there["steps"][1]["grad_norm"])

    def change_state(there):
        state = there["steps"][0]["state"]
        there["steps"][0]["state"] = state[:-1] + ("0" if state[-1] != "0" else "1")

    cases = [("the digest of the state after a step", tamper(change_state), ["step 5 after the resume", "another state after it"]),
             ("the last bit of a loss", tamper(change_loss), ["step 5 after the resume", "has loss"]),
             ("the last bit of the norm of the second step", tamper(change_second_norm), ["step 6 after the resume", "gradient norm"]),
             ("no JSON", lambda name: open(proof_path(folder, name, 4), "w").close(), ["resume_proof.json: it cannot be parsed"]),
             ("a figure that is a word", tamper(lambda t: t["steps"][0].update(loss="small")), ["resume_proof.json: it cannot be parsed"]),
             ("another format", tamper(lambda t: t.update(format=9)), ["it has format 9, but this version reads 1"]),
             ("steps out of order", tamper(lambda t: t["steps"].reverse()), ["step 6 is not one of those after step 4"]),
             ("a proof of another save", lambda name: shutil.copy(proof_path(folder, name, 2), proof_path(folder, name, 4)), ["belongs to another save than the checkpoint in its folder"])]
    for number, (what, change, said) in enumerate(cases):
        name = f"bad{number}"
        copy(folder, "run", name)
        change(name)
        done = folder.train(name, 2, expect=DAMAGED, **COMMON, run__steps=8, checkpoint__every=1)
        check(f"{what}: status 4, said by name, nothing saved", all(words in done.stderr for words in said) and "checkpoint.verify_resume=false" in done.stderr
              and not os.path.exists(folder.run(name) + "/checkpoints/step-00000005"), done.stderr)
        done = folder.train(name, 2, **{**COMMON, "checkpoint__verify_resume": False}, run__steps=8)
        check(f"{what}: a start without the key goes on", runs.same("state", folder.hashes(name), folder.hashes("plain")), output(done))


def check_not_compared(folder):
    copy(folder, "run", "tensor")
    done = folder.train("tensor", 2, **COMMON, run__steps=6, mesh__tp=2)
    check("another mesh.tp gives other bits: said, not compared", "this resume is not compared" in output(done) and "mesh.tp = 1, here 2" in output(done), output(done))
    other = {**COMMON, "optimizer__learning_rate": 2.9e-3}
    folder.train("other", 1, **other, run__steps=2)
    done = folder.train("begun", 1, **COMMON, run__steps=4, run__resume=folder.latest("other"))
    check("a run that begins from one of other keys is not compared, and they are named",
          "this resume is not compared" in output(done) and "optimizer.learning_rate" in output(done), output(done))
    copy(folder, "run", "hardware")
    there = proof(folder, "hardware", 4)
    check("a proof knows the hardware that bits depend on", there["hardware"] != "", there)
    with open(proof_path(folder, "hardware", 4), "w") as out:
        json.dump({**there, "hardware": "another machine", "steps": [{**row, "loss": 2 * row["loss"]} for row in there["steps"]]}, out)
    done = folder.train("hardware", 1, **COMMON, run__steps=6)
    check("on other hardware bits are others: said, not compared, and the data are not blamed",
          "this resume is not compared" in output(done) and "other hardware: another machine there" in output(done), output(done))
    copy(folder, "plain", "unproven")
    done = folder.train("unproven", 1, **COMMON, run__steps=10)
    check("a checkpoint without figures: said", "nothing to compare this resume with" in output(done), output(done))
    cosine = {**COMMON, "learning_rate__schedule": "cosine"}
    folder.train("longer", 1, **cosine, run__steps=4)
    done = folder.train("longer", 1, **cosine, run__steps=9)
    check("of a run that is made longer the steps are compared until the learning rate is another", "the resume is proven: up to step 5" in output(done), output(done))


def check_data(folder):
    """Other tokens in the same place: what a resume on a machine with another copy of the data meets."""
    copy(folder, "run", "data")
    with open(folder.data, "rb") as file:
        tokens = file.read()
    with open(folder.data, "wb") as out:
        out.write(tokens[2:] + tokens[:2])
    done = folder.train("data", 1, expect=USAGE, **COMMON, run__steps=8)
    check("other data are refused before any step", "data.train holds other data than this run was trained on" in done.stderr, done.stderr)
    done = folder.train("data-begun", 1, **COMMON, run__steps=8, run__resume=folder.latest("data"))
    check("a run that begins there with other data is not compared", "this resume is not compared" in output(done) and "the contents of data.train" in output(done), output(done))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    device = parser.parse_args().device
    if device == "cuda":
        COMMON.update(runs.ON_GPUS)
    with runs.Folder() as folder:
        check_proofs(folder, device)
        if device == "host":  # what it is compared and refused by is no matter of the device
            check_stop(folder)
            check_refusals(folder)
            check_not_compared(folder)
        check_data(folder)
    sys.exit(0 if check.good else 1)


if __name__ == "__main__":
    main()
