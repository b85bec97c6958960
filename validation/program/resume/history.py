#!/usr/bin/env python3
"""events.jsonl and the ledger of a run's wall time over starts that end in all ways: at the end, by a signal, by a kill, by a fault; a run that is moved aside; and what
`tessera runs` and `tessera runs compare` say of them. Usage: history.py"""
import json
import math
import os
import signal
import sys

import runs

PARTS = ("productive", "stalled", "saving", "evaluating", "starting", "lost", "queued", "other")
FOR_EVER = 1000000
NUMERICS = 8


def events_of(folder, name):
    with open(os.path.join(folder.run(name), "events.jsonl")) as lines:
        return [json.loads(line) for line in lines]


def readable_events_of(folder, name):
    """Of a run at work, whose last line may be under way."""
    with open(os.path.join(folder.run(name), "events.jsonl")) as lines:
        return [json.loads(line) for line in lines if line.endswith("}\n")]


def summary(folder, name, *options):
    done = runs.tessera("runs", folder.run(name), "--json", *options)
    return json.loads(done.stdout)[0] if done.returncode == 0 else sys.exit(f"FAIL tessera runs: {done.stderr}")


def is_whole(ledger):
    """Its parts are the wall, and none is below 0."""
    return math.isclose(math.fsum(ledger[part] for part in PARTS), ledger["wall"], rel_tol=1e-9) and all(ledger[part] >= 0 for part in PARTS)


def words(events):
    """Warnings and stalls left out, which hang on how fast the machine is."""
    return [event["event"] for event in events if event["event"] not in ("warning", "stall")]


def seconds(rows):
    return math.fsum(row["seconds"] for row in rows if "loss" in row)


def productive(rows):
    """But for what steps stood still, which hangs on the machine."""
    return math.fsum(row["seconds"] - row["stalled_seconds"] for row in rows if "loss" in row)


def check_end(check, folder):
    folder.train("a", 2, run__steps=4, checkpoint__every=2, evaluate__every=4, evaluate__batches=1, data__validation=folder.data)
    events, rows = events_of(folder, "a"), folder.metrics("a")
    check("a run's history", words(events) == ["start", "training", "save", "evaluation", "save", "end"], str(words(events)))
    start, end = events[0], events[-1]
    check("its start", (start["ranks"], start["resumed_from"], start["lost_steps"], start["steps"]) == (2, 0, 0, 4) and start["deck"].startswith("[run]"), str(start))
    with open(folder.run("a") + "/deck.toml") as deck:
        check("with its deck", start["deck"] == deck.read())
    planned = folder.plan(2, run__steps=4, checkpoint__every=2, evaluate__every=4, evaluate__batches=1, data__validation=folder.data)
    check("and the planned bytes", start["plan"] == {tier: of["bytes"] for tier, of in planned["tiers"].items() if of["bytes"]}, f"{start['plan']} {planned['tiers']}")
    check("its end", (end["reason"], end["exit"], end["step"]) == ("finished", 0, 4), str(end))
    check("its ledger adds up", is_whole(end["goodput"]) and math.isclose(end["goodput"]["productive"], productive(rows), rel_tol=1e-9) and end["goodput"]["evaluating"] > 0 and
          end["goodput"]["lost"] == end["goodput"]["queued"] == 0, str(end))
    saves = [row for row in rows if "saved" in row]
    check("rows of saves have the goodput", len(saves) == 2 and all(0 < row["goodput"] < 1 and set(row["goodput_seconds"]) == set(PARTS) for row in saves), str(saves))
    said = summary(folder, "a")
    check("tessera runs says it", (said["state"], said["step"], said["steps"], said["checkpoint"]["step"]) == ("finished", 4, 4, 4) and
          said["val_loss"] == [row["val_loss"] for row in rows if "val_loss" in row][0] and said["loss"] == [row["loss"] for row in rows if "loss" in row][-1] and
          len(said["warnings"]) == len(events) - len(words(events)), str(said))
    check("and the ledger, from the ends of files", all(math.isclose(said["goodput"][part], end["goodput"][part], abs_tol=1e-6) for part in PARTS), str(said))


def check_goes_on(check, folder):
    with open(folder.run("a") + "/events.jsonl") as file:
        before = file.read()
    folder.train("a", 1, run__steps=6, checkpoint__every=2, evaluate__every=4, evaluate__batches=1, data__validation=folder.data)
    with open(folder.run("a") + "/events.jsonl") as file:
        check("a start adds to the history alone", file.read().startswith(before))
    end = events_of(folder, "a")[-1]["goodput"]
    check("the ledger goes on", is_whole(end) and end["starts"] == 2 and end["queued"] > 0 and math.isclose(end["productive"], productive(folder.metrics("a")), rel_tol=1e-9), str(end))


def check_killed(check, folder):
    run = folder.start("killed", 1, run__steps=FOR_EVER, checkpoint__every=40)
    run.wait_for_step(45)
    check("while it runs", summary(folder, "killed")["state"] == "running")
    run.kill()
    run.wait()
    killed = summary(folder, "killed")
    check("a start without an end was killed", killed["state"] == "killed" and not events_of(folder, "killed")[-1]["event"] == "end", str(killed))
    done = [row for row in folder.metrics("killed") if "loss" in row]
    with open(folder.run("killed") + "/events.jsonl", "a") as file:
        file.write('{"time":17')  # a line that a kill has cut
    run = folder.start("killed", 1, run__steps=FOR_EVER, checkpoint__every=40)
    runs.wait_until(lambda: words(readable_events_of(folder, "killed")).count("training") == 2 or run.process.poll() is not None, "the next start's first step")
    run.signal_ranks(signal.SIGTERM)
    check("a signal ends it", run.wait() == 75, run.output())
    events = events_of(folder, "killed")
    start = [event for event in events if event["event"] == "start"][-1]
    lost = [row for row in done if row["step"] > start["resumed_from"]]
    check(f"{len(lost)} steps are done once more", start["lost_steps"] == len(lost) > 0 and math.isclose(start["lost_seconds"], seconds(lost), rel_tol=1e-9), str(start))
    end = events[-1]
    check("and the ledger has their time", end["reason"] == "signal" and is_whole(end["goodput"]) and math.isclose(end["goodput"]["lost"], seconds(lost), rel_tol=1e-9) and
          math.isclose(end["goodput"]["productive"], productive(folder.metrics("killed")), rel_tol=1e-9), f"{end} {seconds(lost)}")
    said = summary(folder, "killed", "--verify")
    check("tessera runs --verify reads the checkpoint", said["state"] == "interrupted" and said["checkpoint"] == {"step": end["step"], "verified": True, "fault": ""}, str(said))


def check_failed(check, folder):
    folder.train("failed", 1, expect=NUMERICS, run__steps=4, precision__compute="fp16", precision__loss_scale__fixed=2.0**26)
    end, said = events_of(folder, "failed")[-1], summary(folder, "failed")
    check("a fault is the end's reason", end["event"] == "end" and end["reason"].startswith("failed: ") and end["exit"] == NUMERICS and said["state"] == "failed", f"{end} {said}")


def check_aside(check, folder):
    folder.train("aside", 1, run__steps=2)
    folder.train("aside", 1, run__steps=2, run__seed=7, run__overwrite=True)
    old, new = events_of(folder, "aside.old-1"), events_of(folder, "aside")
    check("a run that is moved aside takes its history along", new[0]["event"] == "start" and new[0]["time"] > old[-1]["time"] and words(new) == words(old), f"{old} {new}")


def check_compare(check, folder):
    folder.train("b", 1, run__steps=6, batch__global=16)
    done = runs.tessera("runs", "compare", folder.run("a"), folder.run("b"), "--json")
    both = json.loads(done.stdout)
    first = both["at_equal_tokens"][0]
    check("compare: keys", both["keys"]["batch.global"][1] == "16" and "run.output_dir" not in both["keys"], done.stdout)
    tokens = [sum(1 for row in folder.metrics(name) if "loss" in row) for name in "ab"]
    check("compare: losses at equal tokens", first["loss"][1] is not None and both["at_equal_tokens"][-1]["tokens"] == min(run["tokens"] for run in both["runs"]), f"{tokens} {done.stdout}")
    text = runs.tessera("runs", "compare", folder.run("a"), folder.run("b"))
    check("compare: as text", text.returncode == 0 and "batch.global" in text.stdout and "planned, host" in text.stdout, text.stdout + text.stderr)
    listed = runs.tessera("runs", folder.path)
    check("the list has all", all(f"\n{name} " in listed.stdout for name in ("a", "aside", "aside.old-1", "b", "failed", "killed")), listed.stdout + listed.stderr)
    check("one run is not compared", runs.tessera("runs", "compare", folder.run("a")).returncode == 2)


def main():
    check = runs.Checks()
    with runs.Folder() as folder:
        for part in (check_end, check_goes_on, check_killed, check_failed, check_aside, check_compare):
            part(check, folder)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
