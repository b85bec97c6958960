#!/usr/bin/env python3
"""run.trace_step: every rank leaves a timeline that holds each task of the plan as often as it runs, its summary is what its events come to, and no
bit of the run moves. Usage: timeline.py [--device host|cuda]"""
import argparse
import collections
import json
import os
import re
import sys

import runs

RANKS, STEPS, TRACED = 2, 5, 4
KEYS = {"run__steps": STEPS, "run__reproducible": True, "batch__global": 8, "zero__stage": 3, "zero__param_persistence_threshold": 64,
        "zero__max_reuse_distance": 0}
DEVICES = {"host": [{"run__lanes": "threads"}, {"run__lanes": "inline", "precision__compute": "fp32"}],
           "cuda": [{"run__device": "cuda", "topology__share_gpu": True, "kernels__cuda_graph": "on", "batch__sequence_length": 8}]}
TIMES = 1e-9  # seconds by which sums over events may differ: they are written in microseconds


def plan_of(folder, **keys):
    """{(lane, task): how often it runs in a step} and the plan's totals."""
    _, *arguments = folder.arguments("plan", **keys)
    done = runs.tessera("plan", *arguments, "--ranks", str(RANKS), "--json", "--schedule")
    if done.returncode:
        sys.exit(f"plan: status {done.returncode}\n{done.stderr}")
    plan = json.loads(done.stdout)
    tasks, program, repeat = collections.Counter(), None, 0
    for line in plan["schedule"].splitlines():
        if found := re.fullmatch(r"program (\w+)", line):
            program = found[1]
        elif found := re.fullmatch(r"  section .* x (\d+)", line):
            repeat = int(found[1])
        elif program == "train":
            found = re.fullmatch(r" +\d+ (\w+) +(.*?) +reads .*", line)
            tasks[found[1], found[2]] += repeat
    return tasks, plan


def covered(events):
    """Seconds that are inside any of the events."""
    sum_, reached = 0, 0
    for begin, end in sorted((e["ts"], e["ts"] + e["dur"]) for e in events):
        sum_ += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return sum_ * 1e-6


def check_file(check, path, rank, tasks, plan, device):
    with open(path) as file:
        trace = json.load(file)
    events = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    rows = {e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"}
    other, name = trace["otherData"], f"rank {rank}"
    found = collections.Counter((rows[e["tid"]], e["name"]) for e in events)
    check(f"{name}: {len(events)} events are the tasks of the plan", found == tasks and len(events) == plan["step"]["tasks"],
          f"{(found - tasks)}\n{(tasks - found)}")
    check(f"{name}: rows are lanes, the process is the rank", sorted(rows.values()) == ["compute", "gather", "reduce"] and
          {e["pid"] for e in trace["traceEvents"]} == {rank} and (other["step"], other["rank"], other["ranks"], other["device"]) == (TRACED, rank, RANKS, device),
          str(other))
    check(f"{name}: FLOPs and bytes are the plan's", all(sum(e["args"][key] for e in events) == plan["step"][key] for key in ("flops", "bytes_moved")))
    micro = {e["args"]["micro_batch"] for e in events if e["cat"] == "forward"}
    check(f"{name}: micro-batches are counted", micro == set(range(plan["micro_batches_per_rank"])), str(micro))
    check(f"{name}: nothing outside micro-batches has one", all("micro_batch" not in e["args"] for e in events if e["cat"] == "optimizer"))
    inside = all(e["ts"] >= 0 and e["dur"] >= 0 and (e["ts"] + e["dur"]) * 1e-6 <= other["seconds"] + TIMES for e in events)
    check(f"{name}: every task lies inside the step", inside)
    lanes = {lane: [e for e in events if rows[e["tid"]] == lane] for lane in rows.values()}
    ordered = all(a["ts"] + a["dur"] <= b["ts"] + 1e6 * TIMES for lane in lanes.values() for a, b in zip(lane, lane[1:]))
    check(f"{name}: a lane does one thing at a time", ordered)
    busy, compute = covered(events), covered(lanes["compute"])
    near = [(other["lanes"][lane]["busy_seconds"], covered(lanes[lane])) for lane in lanes] + \
           [(other["busy_seconds"], busy), (other["exposed_communication_seconds"], busy - compute), (other["idle_seconds"], other["seconds"] - busy),
            (other["idle_share"], 1 - busy / other["seconds"]), (other["launch_gap_share"], 1 - busy / other["steps_before"]["median_seconds"])]
    check(f"{name}: the summary is what the events come to", all(abs(a - b) < 1e-6 for a, b in near), str(near))
    check(f"{name}: it knows the steps before, and whether they are a graph",
          other["steps_before"]["count"] == TRACED - 3 and other["other_steps_are_a_cuda_graph"] == (device == "cuda"), str(other))


def traced_run(folder, check, device, number, more):
    keys = {**KEYS, **more}
    plain, traced = f"plain{number}", f"traced{number}"
    folder.train(plain, RANKS, **keys)
    said = folder.train(traced, RANKS, run__trace_step=TRACED, **keys).stderr
    where = os.path.join(folder.run(traced), "trace", f"step-{TRACED:08d}")
    check(f"each rank left its file of step {TRACED}, and nothing else", sorted(os.listdir(where)) == [f"rank-{r:04d}.json" for r in range(RANKS)] and
          os.listdir(os.path.dirname(where)) == [os.path.basename(where)], said)
    tasks, plan = plan_of(folder, **keys)
    for rank in range(RANKS):
        check_file(check, os.path.join(where, f"rank-{rank:04d}.json"), rank, tasks, plan, device)
    check("one table, of rank 0", said.count("timeline of step") == 1 and where + "/rank-0000.json" in said and said.count("  exposed  ") == 1, said)
    check("the table says when it is not a graph", ("CUDA graph, which has fewer gaps" in said) == (device == "cuda"), said)
    check("no bit of the losses moved", runs.same("losses", folder.losses(traced), folder.losses(plain)) and len(folder.losses(traced)) == STEPS)
    check("no bit of the state moved", runs.same("state", folder.hashes(traced), folder.hashes(plain)))
    check("a run without the key leaves no timeline", not os.path.exists(os.path.join(folder.run(plain), "trace")))
    return traced, where


def later_runs(folder, check, traced, where, more):
    """The same folder again: a resume behind the step, and at another number of ranks."""
    before = os.stat(os.path.join(where, "rank-0000.json")).st_mtime_ns
    said = folder.train(traced, RANKS, run__trace_step=TRACED, **{**KEYS, **more, "run__steps": STEPS + 1}).stderr
    check("a run that goes on behind the step says so and traces none",
          f"goes on after step {STEPS}" in said and "timeline of step" not in said and os.stat(os.path.join(where, "rank-0000.json")).st_mtime_ns == before, said)
    save = {"checkpoint__every": 2, "checkpoint__keep": 0, "run__trace_step": 3}
    folder.train("again", RANKS, **{**KEYS, **more, **save})
    said = folder.train("again", 1, run__resume=folder.run("again") + "/checkpoints/step-00000002", **{**KEYS, **more, **save}).stderr
    check("a step that one rank runs again has one rank's timeline; the first of a start cannot be compared",
          os.listdir(os.path.join(folder.run("again"), "trace", "step-00000003")) == ["rank-0000.json"] and "no earlier step to compare with" in said, said)
    os.makedirs(folder.run("blocked"))
    with open(os.path.join(folder.run("blocked"), "trace"), "w"):
        pass  # a file where the folder is to be
    said = folder.train("blocked", RANKS, expect=7, run__trace_step=2, **{**KEYS, **more}).stderr
    check("what cannot be written ends the run and is named", said.count("error:") == 1 and folder.run("blocked") + "/trace/step-00000002" in said, said)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    device = parser.parse_args().device
    check = runs.Checks()
    with runs.Folder() as folder:
        if device == "cuda" and not runs.has_gpu(folder):
            print("skipped: there is no GPU")
            return 77
        for number, more in enumerate(DEVICES[device]):
            traced, where = traced_run(folder, check, device, number, more)
        if device == "host":
            later_runs(folder, check, traced, where, more)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
