#!/usr/bin/env python3
"""Guards: a step that is a spike is said, skipped, or left out together with the steps since a checkpoint, with the same bits on any layout, across a resume and after a
kill; a value that is not finite is passed over and named; a bit that turns over in a rank's memory is found, the run goes back and ends with the undisturbed bits.
    guards.py"""
import json
import os
import re
import shutil
import signal
import struct
import sys

import memory_of
import runs
from drawn import DRAW, FULL

check = runs.Checks()
LENGTH, UNUSED = 12, 200  # of a sample; a token that no text has
BAD = 415  # the sample that is like no other: it comes between steps 12 and 36
KEYS = {"batch__global": 4, "model__layers": 1, "run__reproducible": True, "checkpoint__every": 6, "checkpoint__keep": 0, "learning_rate__schedule": "constant",
        "run__log_every": 1, "optimizer__learning_rate": 1e-2, "run__steps": 40}
LAYOUTS = [(2, {"zero__stage": 2}), (2, {"zero__stage": 3, "zero__param_persistence_threshold": 0, "zero__offload_optimizer__device": "host"}),
           (2, {"zero__stage": 1, "checkpoint__async": True, "run__lanes": "threads"}), (2, {"mesh__replicate": 2, "zero__stage": 2})]


def text_with(folder, name, bad):
    """Text that is easily learnt but for some samples."""
    tokens = [i % 7 for i in range(600 * LENGTH + 1)]
    for sample in bad:
        for place in range(LENGTH):
            tokens[sample * LENGTH + place] = 90 + (7 * place + 11 * sample) % 100
    path = os.path.join(folder.path, name)
    with open(path, "wb") as out:
        out.write(struct.pack(f"<{len(tokens)}H", *tokens))
    return path


def state(folder, name):
    return json.loads(runs.tessera("inspect", folder.latest(name), "--json").stdout)


def steps_of(folder, name):
    return {row["step"]: row for row in folder.metrics(name) if "loss" in row}


def spikes(folder, data):
    keys = {**KEYS, "data__train": data}
    folder.train("off", 1, **keys)
    keys["guards__window"] = 16
    warned = folder.train("warn", 1, **keys, guards__spike="warn")
    rows = steps_of(folder, "warn")
    step = max(rows, key=lambda s: rows[s]["loss_z"])
    check("one step is a spike", 12 < step < 36 and rows[step]["loss_z"] > 6, str({s: row["loss_z"] for s, row in rows.items()}))
    check("it is said, with what it is", f"step {step}: the loss is" in warned.stderr + warned.stdout and "robust deviations" in warned.stderr + warned.stdout, warned.stderr)
    check("a warning changes no weights", folder.hashes("warn") == folder.hashes("off"))

    skip = {**keys, "guards__spike": "skip", "guards__skip_limit": 2}
    folder.train("skip", 1, **skip)
    rows = steps_of(folder, "skip")
    check("skip leaves it out", rows[step]["skipped"] == 1 and sum(row["skipped"] for row in rows.values()) < 4 and state(folder, "skip")["run"]["applied_updates"] == 40 -
          sum(row["skipped"] for row in rows.values()), str(rows[step]))
    back = {**keys, "guards__spike": "rollback"}
    said = folder.train("back", 1, **back)
    text = said.stderr + said.stdout
    begun = (step - 1) // 6 * 6
    check("rollback returns to the checkpoint before the spike", f"the run rolled back to step {begun}, and leaves out the {4 * (step - begun)} samples" in text, text)
    values = state(folder, "back")
    check("the cursor has moved on, and what was left out is counted", values["run"]["samples_left_out"] == 4 * (step - begun) and
          values["run"]["sample_cursor"] == 40 * 4 + 4 * (step - begun), str(values["run"]))
    check("each step stands once", [row["step"] for row in folder.metrics("back") if "loss" in row] == list(range(1, 41)))
    starts = [row for row in folder.metrics("back") if "went_back" in row]
    check("metrics and events say why", len(starts) == 1 and f"step {step}: the loss is" in starts[0]["went_back"] and any(
        event.get("went_back") for event in events(folder, "back")), str(starts))
    line = json.load(open(os.path.join(folder.run("back"), "checkpoints", "line.json")))
    check("so does the line of descent", line[-1]["from_step"] == begun and "the loss is" in line[-1].get("why", ""), str(line))
    listed = runs.tessera("runs", folder.path).stdout
    check("tessera runs says so", any(line.startswith("back") and "1 warning" in line for line in listed.splitlines()) and "rolled back to step" in listed, listed)

    # A step that a guard has passed over leaves a late update behind; so does one that is computed twice, or whose copies are compared.
    offloaded = {**back, **LAYOUTS[1][1], "guards__skip_limit": 3}
    folder.train("back-late", 2, **offloaded)
    check("a run that may skip steps and updates late goes back", folder.hashes("back-late") == folder.hashes("back") and
          folder.losses("back-late") == folder.losses("back"), "not the bits of one rank")

    # In bf16 such a layout leaves what lay in memory between the tensors of its copies. That is no fault of a checkpoint.
    for name, layout in (("offloaded", {"zero__stage": 2, "zero__offload_optimizer__device": "host"}), ("by nothing", {"zero__stage": 2})):
        said = folder.train(f"bf16-{name}", 2, **{**back, **layout, "precision__compute": "bf16", "guards__digest_every": 3})
        text = said.stderr + said.stdout
        check(f"copies in bf16 agree with what was saved, {name}", "It is skipped" not in text and "the run rolled back to step" in text, text)
    check("and the bits are the same", folder.hashes("bf16-offloaded") == folder.hashes("bf16-by nothing"))

    chosen = LAYOUTS if FULL else [LAYOUTS[DRAW % len(LAYOUTS)]]
    for ranks, layout in chosen:
        name = "-".join(f"{key.split('__')[-1]}={value}" for key, value in layout.items())
        for policy, of in (("skip", skip), ("back", back)):
            # Copies that are compared meanwhile: a checkpoint that is read again holds them, whatever the layout keeps.
            folder.train(f"{policy}-{name}", ranks, **of, **layout, guards__digest_every=int(policy == "back"))
            check(f"{policy} has the same bits on {name}", folder.hashes(f"{policy}-{name}") == folder.hashes(policy) and
                  steps_of(folder, policy)[40]["loss"] == steps_of(folder, f"{policy}-{name}")[40]["loss"])
    # Windows and counters are values of the run: across a resume, just before the spike and just after the run has gone back.
    for policy, of, at in (("skip", skip, step - 1), ("back", back, step)):
        folder.train(f"{policy}-cut", 1, **{**of, "run__steps": at})
        folder.train(f"{policy}-cut", 1, **of)
        check(f"{policy} has the same bits across a resume after step {at}", folder.hashes(f"{policy}-cut") == folder.hashes(policy))

    # Before its first save a run goes back to where it began: to another run's checkpoint, or to a model that was imported.
    folder.train("origin", 1, **{**back, "run__steps": 10})
    begun = {**back, "run__resume": folder.latest("origin"), "checkpoint__every": 1000}
    said = folder.train("begun", 1, **begun)
    text = said.stderr + said.stdout
    check("a run that has not saved goes back to the checkpoint with which it began", f"resumed from {os.path.realpath(folder.latest('origin'))} at step 10" in text.replace(folder.latest("origin"), os.path.realpath(folder.latest("origin"))) and
          "the run rolled back to step 10, and leaves out" in text, text)
    rows = steps_of(folder, "begun")
    check("its losses are those of trained weights", rows[11]["loss"] < 0.5 * steps_of(folder, "off")[1]["loss"], str(rows[11]))
    folder.train("begun-2", 2, **{**begun, "zero__stage": 3})
    check("it has the same bits on two ranks", folder.hashes("begun-2") == folder.hashes("begun"))

    rough = text_with(folder, "rough.bin", range(0, 600, 8))
    limit = folder.train("limit", 1, expect=8, **{**keys, "data__train": rough, "guards__spike": "rollback", "guards__window": 8, "guards__rollback_limit": 2,
                                                  "checkpoint__every": 20, "run__steps": 400})
    check("a run that goes back again and again ends", "guards.rollback_limit" in limit.stderr + limit.stdout and "step-N" in limit.stderr + limit.stdout, limit.stderr)


def killed(folder, data):
    """A run that is killed while a save has not ended, and goes on from the memory of nodes or from an older checkpoint, goes back where it would have gone back to: it ends
    with the bits of a run that nobody disturbed. So does one that was stopped between two checkpoints, and has saved there."""
    keys = {**KEYS, "model__layers": 4, "model__width": 128, "optimizer__learning_rate": 2e-3, "data__train": data, "guards__spike": "rollback", "guards__window": 16,
            "guards__threshold": 20.0, "checkpoint__every": 18}
    folder.train("unhurt", 1, **keys)
    back = [event["went_back"] for event in events(folder, "unhurt") if event.get("went_back")]
    check("the undisturbed run goes back to step 18", back and "the run rolled back to step 18" in back[0], str(back))

    def same(name, said):
        check(f"{name}: the bits of an undisturbed run", folder.hashes(name) == folder.hashes("unhurt") and folder.losses(name)[40] == folder.losses("unhurt")[40],
              said + str([event["went_back"] for event in events(folder, name) if event.get("went_back")]))

    for every, ranks, words in ((18, 2, "resumed from in-memory replicas at step 18"),
                                (19, 3, "would return to the checkpoint of step 18, which is missing")):
        name = f"hurt-{every}"
        memory = os.path.join(folder.path, f"memory-{every}")
        os.mkdir(memory)
        near = {**keys, "checkpoint__neighbour_every": every, "checkpoint__neighbour_folder": memory, "checkpoint__allow_same_node": True, "zero__stage": 1}
        run = folder.start(name, ranks, **near)
        try:
            # Copies are whole some steps later, on a machine that has more to do.
            runs.wait_until(lambda: f"the state after step {every} lies" in run.output() or run.ended(), "copies")
        finally:
            run.kill()
        if run.steps_done() > 34 or "rolled back" in run.output():  # the spike has come before: nothing is left to be shown
            continue
        root = os.path.join(folder.run(name), "checkpoints")
        for entry in os.listdir(root):  # as if the save had not ended yet
            if entry.startswith("step-"):
                shutil.rmtree(os.path.join(root, entry))
        if os.path.islink(os.path.join(root, "latest")):
            os.remove(os.path.join(root, "latest"))
        said = folder.train(name, ranks, **near).stderr
        check(f"{name}: {words}", words in said, said)
        same(name, said)
    run = folder.start("stopped", 1, **keys)
    try:
        run.wait_for_step(20)
        run.signal_ranks(signal.SIGTERM)
        check("it saves and leaves", run.wait() in (75, 0), run.output())
    finally:
        run.kill()
    same("stopped", folder.train("stopped", 1, **keys).stderr)


def missing(folder, data):
    """A checkpoint to which a run would go back was not saved, as the disk was full for a while. What the run makes of its data does not depend on that: it makes the steps up to
    there again. So does a run that is killed meanwhile, and one that keeps a single checkpoint and was stopped between two. Where that would be long, it says that numbers differ."""
    keys = {**KEYS, "data__train": data, "guards__spike": "rollback", "guards__window": 16, "guards__threshold": 20.0}
    folder.train("whole", 1, **keys)
    back = [event["went_back"] for event in events(folder, "whole") if event.get("went_back")]
    at = int(re.search(r"rolled back to step (\d+)", back[0])[1])
    step = int(re.match(r"step (\d+)", back[0])[1])
    for name, cut, kept in (("without", step - 1, {}), ("stopped-once", step - 1, {"checkpoint__keep": 1}), ("far", step - 1, {"checkpoint__keep": 1})):
        folder.train(name, 1, **{**keys, **kept, "run__steps": cut})
        root = os.path.join(folder.run(name), "checkpoints")
        if name != "stopped-once":
            shutil.rmtree(os.path.join(root, f"step-{at:08d}"))
        said = folder.train(name, 1, **{**keys, **kept}).stderr
        words = {"without": f"rolled back to step {at - 6}, because no checkpoint of step {at} can be read. It repeats the steps up to {at}", "stopped-once": f"the run rolled back to step {at}, and leaves out",
                 "far": "A run that kept that checkpoint has other numbers from here on"}[name]
        check(f"{name}: {words}", words in said, said)
        same = folder.hashes(name) == folder.hashes("whole") and folder.losses(name)[40] == folder.losses("whole")[40]
        check(f"{name}: the bits are {'other ones' if name == 'far' else 'those of a run whose saves are whole'}", same == (name != "far"), said)
    # The line says what is still to be left out, so that the way there may be ended at any step of it.
    line = json.load(open(os.path.join(folder.run("without"), "checkpoints", "line.json")))[-1]
    check("the line says where it leaves out samples", line["from_step"] == at - 6 and line["way_back"]["left_out"] == [{"after": at, "samples": 4 * (step - at)}], str(line))
    folder.train("ended", 1, **{**keys, "run__steps": step - 1})
    root = os.path.join(folder.run("ended"), "checkpoints")
    shutil.rmtree(os.path.join(root, f"step-{at:08d}"))
    run = folder.start("ended", 1, **{**keys, "run__steps": 40, "run__log_every": 1})
    try:
        runs.wait_until(lambda: "the run rolled back to step" in run.output() or run.ended(), "the way back")
        run.signal_ranks(signal.SIGTERM)
        check("it saves and leaves", run.wait() in (75, 0), run.output())
    finally:
        run.kill()
    said = folder.train("ended", 1, **keys).stderr
    check("ended on the way: the bits of a run whose saves are whole", folder.hashes("ended") == folder.hashes("whole"), said)


def events(folder, name):
    with open(os.path.join(folder.run(name), "events.jsonl")) as lines:
        return [json.loads(line) for line in lines]


def turned_bits(folder, data, every, digest_every):
    """A bit of a weight that every rank keeps. A run that saves each step is most often met while it saves: that checkpoint holds the bit. Copies are compared before each
    save, however seldom else."""
    keys = {**KEYS, **runs.ENDLESS, "checkpoint__every": every, "data__train": data, "optimizer__weight_decay": 0, "guards__digest_every": digest_every,
            "zero__stage": 0, "run__log_every": 1000}
    row = memory_of.initial_row(folder, f"initial-{every}-{digest_every}", "model.embed_tokens.weight", UNUSED, **{**keys, "run__steps": 2})
    run = folder.start(f"turned-{every}-{digest_every}", 2, **keys)
    try:
        run.wait_for_step(8)
        pid = run.ranks()[1]
        with memory_of.Stopped(pid) as memory:
            places = memory.find(row)
            check("the weights are in its memory", 1 <= len(places) <= 4, str(places))
            for place in places:
                memory.write(place + 5, bytes([row[5] ^ 4]))
        runs.wait_until(lambda: "the wrong copy before" in run.output() or run.ended(), "the step to be made again")
        step = run.steps_done()
        run.wait_for_step(step + 2)
        run.signal_ranks(signal.SIGTERM)
        check("the run saves and leaves", run.wait() == 75, run.output())
    finally:
        run.kill()
    said = run.output()
    check("a copy that differs is named", "memory of a rank has changed that no task writes" in said and "embedding" in said, said)
    check("made again the step tells whose it was", "the wrong copy before it was" in said and any("of rank 1 on" in line for line in said.splitlines() if "the wrong copy before" in line), said)
    last = run.steps_done()
    folder.train(f"undisturbed-{every}-{digest_every}", 1, **{**keys, "run__steps": last, "guards__digest_every": 0})
    check("it ends with the undisturbed bits", folder.hashes(f"turned-{every}-{digest_every}") == folder.hashes(f"undisturbed-{every}-{digest_every}"))


def not_finite(folder, data):
    """A weight that is no number for a while, of a tensor that no step changes."""
    keys = {**KEYS, **runs.ENDLESS, "data__train": data, "model__freeze": '["embedding.*"]', "guards__skip_limit": 1000, "checkpoint__every": 0, "precision__compute": "fp32",
            "run__log_every": 1000}
    row = memory_of.initial_row(folder, "initial-frozen", "model.embed_tokens.weight", 3, **{**keys, "run__steps": 2})
    run = folder.start("nan", 2, **keys)
    nan = struct.pack("<f", float("nan"))
    try:
        run.wait_for_step(3)
        pid = run.ranks()[1]
        with memory_of.Stopped(pid) as memory:
            places = memory.find(row)
            check("what is frozen is in its memory", 1 <= len(places) <= 4, str(places))
            for place in places:
                memory.write(place, nan)
        runs.wait_until(lambda: "the step changes no weights" in run.output() or run.ended(), "a step that is passed over")
        with memory_of.Stopped(pid) as memory:
            for place in places:
                memory.write(place, row[:4])
        step = run.steps_done()
        run.wait_for_step(step + 3)
        run.signal_ranks(signal.SIGTERM)
        check("the run went on, saves and leaves", run.wait() == 75, run.output())
    finally:
        run.kill()
    said = run.output()
    check("rank and tensor are named", "Weights or optimizer state were wrong before the step: rank " in said and "embedding.weight" in said and "nan" in said, said)
    rows = steps_of(folder, "nan")
    skipped = [step for step, row in rows.items() if row["skipped"]]
    check("only steps meanwhile were passed over", skipped and skipped == list(range(skipped[0], skipped[-1] + 1)) and not rows[max(rows)]["skipped"], str(skipped))
    check("the state is finite", state(folder, "nan")["run"]["guard_skipped_in_a_row"] == 0)


def main():
    with runs.Folder() as folder:
        data = text_with(folder, "spiky.bin", [BAD])
        spikes(folder, data)
        for every, digest_every in ((6, 1), (1, 1), (4, 10**9)):
            turned_bits(folder, data, every, digest_every)
        not_finite(folder, data)
        killed(folder, data)
        missing(folder, data)
    sys.exit(0 if check.good else 1)


if __name__ == "__main__":
    main()
