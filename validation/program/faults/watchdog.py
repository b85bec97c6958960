#!/usr/bin/env python3
"""A rank that is stopped, loops for ever, or is slow: it is named with host, task and stacks, nothing of the run changes by that, and nothing is left behind.
watchdog.py LIBRARY (of slow_rank.cpp)"""
import json
import os
import re
import signal
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

LIBRARY = sys.argv[1] if len(sys.argv) > 1 else ""
LOST = 76  # exit status
COMMON = {**runs.ENDLESS, "run__reproducible": True, "run__threads": 1, "batch__global": 12, "watchdog__limit": "3 s"}
check = runs.Checks()


def said(run, words):
    """The run's output once it has these words."""
    runs.wait_until(lambda: re.search(words, run.output()) or run.ended(), words, pause=0.05)
    return run.output()


def state(pid):
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()[0]


def has_stacks(output, pid, function):
    """Where the build has no libdw, or the system allows no look, that is said."""
    stacks = output[output.find(f"process {pid}:"):]
    return "no stacks: " in stacks or re.search(function, stacks)


def stopped(folder, reference):
    told = os.path.join(folder.path, "told")
    run = folder.start("stopped", 3, **COMMON, run__notify=json.dumps(f"cat >> '{told}'"))
    run.wait_for_step(8)
    pid = run.ranks()[1]
    os.kill(pid, signal.SIGSTOP)
    begin = time.monotonic()
    output = said(run, "stacks of rank")
    check("stopped: one table says so", output.count("no rank has moved for") == 1 and "watchdog.limit" in output, output)
    check("stopped: who waits for whom", re.search(r"the others wait for rank 1 on \S+, which no longer answers", output), output)
    check("stopped: what each is at", re.search(r"train .* s  ranks? [02].*waits in ", output) and re.search(r"rank 1 on \S+: no answer; last: ", output), output)
    check("stopped: its threads and stacks", re.search(r"stacks of rank 1 on \S+, process %d:\n  threads? %d.*stopped" % (pid, pid), output)
          and has_stacks(output, pid, r" in (tessera|lib)"), output)
    runs.wait_until(lambda: state(pid) == "T", "the rank to be stopped again after somebody has looked")
    check("stopped: looking at it leaves it stopped", state(pid) == "T", state(pid))
    # Longer than a stall must be, whatever steps take here.
    time.sleep(max(0, 7 + 7 * max(row["seconds"] for row in folder.metrics("stopped") if "loss" in row) - (time.monotonic() - begin)))
    halted = time.monotonic() - begin
    os.kill(pid, signal.SIGCONT)
    output = said(run, "the run continues after")
    check("stopped: it goes on", "the run continues after" in output, output)
    step = run.steps_done()
    run.wait_for_step(step + 2)
    pids = run.everybody()
    run.signal_ranks(signal.SIGTERM)
    status = run.wait()
    runs.wait_until_gone(pids)
    check(f"stopped: status {status} at the end", status == 75, run.output())
    last = run.steps_done()
    losses, hashes = reference.at(last)
    check("stopped: no bit has changed", runs.same("stopped", folder.losses("stopped"), losses) and runs.same("stopped", folder.hashes("stopped"), hashes))


    leaves_a_stall(folder, halted, told)


def leaves_a_stall(folder, halted, told):
    """The step in which the rank was stopped: its event, its part of goodput, a warning, advice, and what the command was told."""
    with open(os.path.join(folder.run("stopped"), "events.jsonl"), encoding="utf-8") as lines:
        stalls = [event for event in map(json.loads, lines) if event["event"] == "stall"]
    check("stopped: a stall is an event with its rank", len(stalls) == 1 and stalls[0]["ranks"] == [1] and stalls[0]["seconds"] > 0.8 * halted, json.dumps(stalls))
    excess = sum(row["stalled_seconds"] for row in folder.metrics("stopped") if "loss" in row)
    summary = json.loads(runs.tessera("runs", folder.run("stopped"), "--json").stdout)[0]
    check("stopped: goodput has what the step took beyond the others", abs(summary["goodput"]["stalled"] - excess) < 1e-6 * excess and excess > 0.7 * halted,
          f"{summary['goodput']} {excess}")
    check("stopped: it counts as a warning", any("the others waited for rank 1 on" in text for text in summary["warnings"]), json.dumps(summary))
    page = json.loads(runs.tessera("runs", "report", folder.run("stopped"), "--json").stdout)
    check("stopped: advice names it", any("A step stalled" in advice["found"] for advice in page["advice"]), json.dumps(page["advice"]))
    with open(told, encoding="utf-8") as lines:
        notices = [json.loads(line) for line in lines]
    check("stopped: the command was told of it and of the end", [notice["event"] for notice in notices] == ["stall", "end"] and notices[0]["ranks"] == [1]
          and notices[1]["reason"] == "signal" and notices[1]["exit"] == 75, json.dumps(notices))


def first_stopped(folder):
    """Rank 0 is the one that looks; then the next one does."""
    run = folder.start("first", 3, watchdog__action="end", **COMMON)
    run.wait_for_step(5)
    pids = run.everybody()
    run.signal_ranks(signal.SIGSTOP, 0)
    status, output = run.wait(), run.output()
    runs.wait_until_gone(pids)
    check(f"rank 0 stopped: status {status}", status == LOST, output)
    last = runs.own_lines(output)[-1]
    check("rank 0 stopped: the last line is the cause", re.search(r"no rank has moved for \d+ s: the others wait for rank 0 on \S+, which no longer answers", last), output)


def endless(folder):
    go = os.path.join(folder.path, "go")
    os.environ.update(LD_PRELOAD=LIBRARY, SLOW_RANK="1", SLOW_FILE=go)
    run = folder.start("endless", 3, watchdog__action="end", **COMMON)
    for name in ("LD_PRELOAD", "SLOW_RANK", "SLOW_FILE"):
        del os.environ[name]
    run.wait_for_step(5)
    pids, pid = run.everybody(), run.ranks()[1]
    with open(go, "w") as how:
        how.write("loop")
    status, output = run.wait(), run.output()
    runs.wait_until_gone(pids)
    check(f"an endless loop: status {status}", status == LOST, output)
    last = runs.own_lines(output)[-1]
    check("an endless loop: the last line is the cause", re.search(r"no rank has moved for \d+ s: the others wait for rank 1 on \S+, which waits for no rank itself", last), output)
    check("an endless loop: the stack shows it", has_stacks(output, pid, "loop_for_ever"), output)


def slow(folder):
    go = os.path.join(folder.path, "go-slow")
    os.environ.update(LD_PRELOAD=LIBRARY, SLOW_RANK="2", SLOW_FILE=go)
    run = folder.start("slow", 3, **COMMON)
    for name in ("LD_PRELOAD", "SLOW_RANK", "SLOW_FILE"):
        del os.environ[name]
    run.wait_for_step(5)
    with open(go, "w") as how:
        how.write("slow")
    output = said(run, r"rank 2 on \S+ is slow")
    found = re.search(r"rank 2 on \S+ is slow: its own work takes ([\d.]+) ms a step, while ranks with the same work take ([\d.]+) ms. Most of the difference is in (compute|data)", output)
    check("three times as slow: named with its host and its work", found and float(found[1]) > 1.3 * float(found[2]), output)
    run.signal_ranks(signal.SIGTERM)
    check("three times as slow: the run ends as it should", run.wait() == 75, run.output())
    rows = [row for row in folder.metrics("slow") if "stragglers" in row]
    check("three times as slow: a row of metrics.jsonl", rows and any(name.startswith("rank 2 on ") for row in rows for name in row["stragglers"]), str(rows))


def main():
    with runs.Folder() as folder:
        reference = runs.Reference(folder, **COMMON)
        stopped(folder, reference)
        first_stopped(folder)
        if LIBRARY:
            endless(folder)
            slow(folder)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
