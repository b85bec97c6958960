#!/usr/bin/env python3
"""run.trace: every rank leaves a timeline that holds each task of the plan as often as it runs, its summary is what its events come to, all of them lie
on one clock in one file, beside what is predicted, and no bit of the run moves. Usage: timeline.py [--device host|cuda] [--nvtx TOOL]    TOOL: a library that writes down NVTX ranges"""
import argparse
import collections
import json
import os
import re
import sys

import runs

RANKS, STEPS, TRACED = 2, 5, 4
PREDICTED = 1000000  # process of what is predicted of rank 0
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
    begin = other["begin_seconds"]
    inside = begin >= 0 and all(e["ts"] * 1e-6 >= begin - TIMES and e["dur"] >= 0 and (e["ts"] + e["dur"]) * 1e-6 <= begin + other["seconds"] + TIMES for e in events)
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


def check_joined(check, folder, first, last, predicted):
    """The file of all ranks and steps is their files' events, in time of one clock: a step's collectives overlap on all ranks, and steps do not."""
    trace = os.path.join(folder, "trace")
    with open(os.path.join(trace, f"steps-{first:08d}-{last:08d}.json")) as file:
        joined = json.load(file)
    events = [e for e in joined["traceEvents"] if e["ph"] == "X"]
    alone, spans = [], {}
    for step in range(first, last + 1):
        for rank in range(RANKS):
            with open(os.path.join(trace, f"step-{step:08d}", f"rank-{rank:04d}.json")) as file:
                one = json.load(file)
            alone += [e for e in one["traceEvents"] if e["ph"] == "X"]
            begin = one["otherData"]["begin_seconds"]
            spans[step, rank] = begin, begin + one["otherData"]["seconds"]
    key = lambda e: json.dumps(e, sort_keys=True)
    check(f"one file holds all of steps {first} to {last}", sorted(map(key, alone)) == sorted(key(e) for e in events if e["pid"] < PREDICTED and e["cat"] != "steps"))
    rows = [(e["name"], round(e["ts"] * 1e-6, 6)) for e in events if e["cat"] == "steps"]
    check("a row says which step is when", rows == [(f"step {step}", round(spans[step, 0][0], 6)) for step in range(first, last + 1)], str(rows))
    check("the first step begins at 0, on one rank at least", min(spans[first, rank][0] for rank in range(RANKS)) == 0, str(spans))
    meet = all(max(spans[step, r][0] for r in range(RANKS)) < min(spans[step, r][1] for r in range(RANKS)) for step in range(first, last + 1))
    follow = all(spans[step, r][1] <= spans[step + 1, r][0] for step in range(first, last) for r in range(RANKS))
    check("ranks are in a step together, and steps follow each other", meet and follow, str(spans))
    theirs = [e for e in events if e["pid"] >= PREDICTED]
    check("what is predicted stands beside it, and nowhere else", bool(theirs) == predicted and
          (not predicted or {e["name"] for e in theirs} == {e["name"] for e in alone if e["pid"] == 0}),
          str({e["name"] for e in theirs} ^ {e["name"] for e in alone if e["pid"] == 0}))


def machine_of_hosts(folder):
    """A profile that says what a plan for hosts asks of it; how fast they are is of no concern here."""
    with open(os.path.join(os.path.dirname(__file__), "../../../inputs/machines/a100_8.toml")) as file:
        text = file.read()
    path = os.path.join(folder.path, "machine.toml")
    with open(path, "w") as file:
        file.write(re.sub(r"(?m)^device_memory.*\n", "", text.replace('device = "cuda"', 'device = "host"')))
    return path


def traced_run(folder, check, device, number, more):
    keys = {**KEYS, **more}
    plain, traced = f"plain{number}", f"traced{number}"
    folder.train(plain, RANKS, **keys)
    several = number == 1 or device == "cuda"
    last = TRACED + 1 if several else TRACED
    predicted = {"run__machine": machine_of_hosts(folder)} if number == 1 else {}
    said = folder.train(traced, RANKS, run__trace=f"{TRACED}..{last}" if several else TRACED, **predicted, **keys).stderr
    where = os.path.join(folder.run(traced), "trace", f"step-{TRACED:08d}")
    check(f"each rank left its file of step {TRACED}, and nothing else", sorted(os.listdir(where)) == [f"rank-{r:04d}.json" for r in range(RANKS)] and
          sorted(os.listdir(os.path.dirname(where))) == [f"step-{step:08d}" for step in range(TRACED, last + 1)] + [f"steps-{TRACED:08d}-{last:08d}.json"], said)
    check_joined(check, folder.run(traced), TRACED, last, bool(predicted))
    tasks, plan = plan_of(folder, **keys)
    for rank in range(RANKS):
        check_file(check, os.path.join(where, f"rank-{rank:04d}.json"), rank, tasks, plan, device)
    check("a table a step, of rank 0", said.count("timeline of step") == last - TRACED + 1 and where + "/rank-0000.json" in said and said.count("  exposed  ") == last - TRACED + 1, said)
    check("the table says when it is not a graph", ("CUDA graph, which has fewer gaps" in said) == (device == "cuda"), said)
    check("no bit of the losses moved", runs.same("losses", folder.losses(traced), folder.losses(plain)) and len(folder.losses(traced)) == STEPS)
    check("no bit of the state moved", runs.same("state", folder.hashes(traced), folder.hashes(plain)))
    check("a run without the key leaves no timeline", not os.path.exists(os.path.join(folder.run(plain), "trace")))
    return traced, where


def later_runs(folder, check, traced, where, more):
    """The same folder again: a resume behind the step, and at another number of ranks."""
    before = os.stat(os.path.join(where, "rank-0000.json")).st_mtime_ns
    said = folder.train(traced, RANKS, run__trace=TRACED, **{**KEYS, **more, "run__steps": STEPS + 1}).stderr
    check("a run that goes on behind the step says so and traces none",
          f"continues after step {STEPS}" in said and "timeline of step" not in said and os.stat(os.path.join(where, "rank-0000.json")).st_mtime_ns == before, said)
    save = {"checkpoint__every": 2, "checkpoint__keep": 0, "run__trace": 3}
    folder.train("again", RANKS, **{**KEYS, **more, **save})
    said = folder.train("again", 1, run__resume=folder.run("again") + "/checkpoints/step-00000002", **{**KEYS, **more, **save}).stderr
    check("a step that one rank runs again has one rank's timeline; the first of a start cannot be compared",
          os.listdir(os.path.join(folder.run("again"), "trace", "step-00000003")) == ["rank-0000.json"] and "no earlier step to compare with" in said, said)
    os.makedirs(folder.run("blocked"))
    with open(os.path.join(folder.run("blocked"), "trace"), "w"):
        pass  # a file where the folder is to be
    said = folder.train("blocked", RANKS, expect=7, run__trace=2, **{**KEYS, **more}).stderr
    check("what cannot be written ends the run and is named", said.count("error:") == 1 and folder.run("blocked") + "/trace/step-00000002" in said, said)


def check_ranges(folder, check, tool):
    """A tool that looks at the program from outside sees each program that runs and, where tasks are issued one by one, each task."""
    keys = {**KEYS, **DEVICES["cuda"][0], "run__steps": 2, "run__trace": 2, "zero__stage": 0}
    seen = os.path.join(folder.path, "ranges.txt")
    os.environ.update(NVTX_INJECTION64_PATH=tool, TESSERA_TEST_RANGES=seen)
    try:
        folder.train("ranges", 1, own_process=True, **keys)
    finally:
        del os.environ["NVTX_INJECTION64_PATH"], os.environ["TESSERA_TEST_RANGES"]
    with open(seen) as file:
        lines = file.read().splitlines()
    with open(os.path.join(folder.run("ranges"), "trace", "step-00000002", "rank-0000.json")) as file:
        tasks = collections.Counter(e["name"] for e in json.load(file)["traceEvents"] if e["ph"] == "X")
    found, ends = collections.Counter(lines), lines.count("end")
    check(f"a tool sees {len(tasks)} tasks as ranges, in each of two steps", all(found[name] >= 2 * count for name, count in tasks.items()),
          str({name: (found[name], count) for name, count in tasks.items() if found[name] < 2 * count}))
    check("and the programs, and each range ends", found["train"] == 2 and found["publish"] == 1 and ends == len(lines) - ends, f"{ends} of {len(lines)}: {found}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    parser.add_argument("--nvtx")
    options = parser.parse_args()
    device = options.device
    check = runs.Checks()
    with runs.Folder() as folder:
        if device == "cuda" and not runs.has_gpu(folder):
            print("skipped: there is no GPU")
            return 77
        for number, more in enumerate(DEVICES[device]):
            traced, where = traced_run(folder, check, device, number, more)
        if options.nvtx:
            check_ranges(folder, check, options.nvtx)
        if device == "host":
            later_runs(folder, check, traced, where, more)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
