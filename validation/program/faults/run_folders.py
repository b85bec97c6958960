#!/usr/bin/env python3
"""A run's folder in the hands of users and file systems: checkpoints that cannot be read are never taken for none, going back happens once over
any number of starts, copies that follow links go on, what is moved or removed under a run is written anew, a full disk is foreseen.
    run_folders.py [FAULT_FILES_LIBRARY]     without it the cases that need calls to fail are left out"""
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

# A schedule that does not know the last step: runs that are stopped and runs that end have the same bits.
COMMON = {"run__reproducible": True, "run__threads": 1, "batch__global": 4, "learning_rate__schedule": "constant", "checkpoint__every": 2}
USAGE, CHECKPOINT, ENVIRONMENT, STORAGE, NUMERICS, STOPPED = 2, 4, 6, 7, 8, 75
FOR_EVER = 1000000
LIBRARY = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1] else None
check = runs.Checks()


def step_path(folder, name, step):
    return f"{folder.run(name)}/checkpoints/step-{step:08d}"


def steps_there(folder, name):
    return sorted(int(entry[5:]) for entry in os.listdir(folder.run(name) + "/checkpoints") if re.fullmatch(r"step-\d+", entry))


def steps_of(metrics):
    """In the order in which they stand there; starts have rows of their own."""
    with open(metrics) as lines:
        rows = [json.loads(line) for line in lines]
    return [row["step"] for row in rows if "loss" in row]


def link(folder, name):
    try:
        return os.readlink(folder.latest(name))
    except OSError:
        return ""


def start(folder, name, ranks=1, expect=0, faults=None, free=None, free_files=None, **keys):
    """The finished process; its status must be as expected."""
    environment = dict(os.environ)
    told = {"FAULT_FILES": faults, "FAULT_FREE_BYTES": free, "FAULT_FREE_FILES": free_files}
    if any(value is not None for value in told.values()):
        environment.update(LD_PRELOAD=LIBRARY, **{variable: str(value) for variable, value in told.items() if value is not None})
    done = subprocess.run(folder.command(name, ranks, **{**COMMON, **keys}), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
                          env=environment)
    check(f"{name}: status {done.returncode}", done.returncode == expect, done.stderr)
    return done.stderr


def tree(path):
    """What stands in a folder: names, links and times, so that nothing can have been written."""
    found = {}
    for root, folders, files in os.walk(path):
        for entry in folders + files:
            at = os.path.join(root, entry)
            state = os.lstat(at)
            found[at] = (state.st_mode, state.st_size, state.st_mtime_ns if entry != "run.lock" else 0)
    return found


def copy_of(folder, source, name, change):
    shutil.copytree(folder.run(source), folder.run(name), symlinks=True)
    change(folder.run(name) + "/checkpoints")
    return folder.run(name)


def replace_by_link(path, target):
    shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.remove(path)
    os.symlink(target, path)


def flip_data(step):
    path = step + "/shard-00000.h5"
    at = max((s for s in runs.directory(path)["slices"]), key=lambda s: s["end"] - s["begin"])["data_at"] + 40
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def unreadable(folder):
    """Each of these started anew, or from an older step, with status 0."""
    index = "step-00000008/checkpoint.h5"
    cases = [
        ("no-index", lambda root: os.remove(f"{root}/{index}"), None, [index, "missing"]),
        ("index-loop", lambda root: replace_by_link(f"{root}/{index}", "checkpoint.h5"), None, [index, "Too many levels of symbolic links"]),
        ("latest-loop", lambda root: replace_by_link(root + "/latest", "latest"), None, ["latest", "Too many levels of symbolic links"]),
        ("latest-dangles", lambda root: replace_by_link(root + "/latest", "step-00000099"), None,
         ["step-00000099", "it is a link to nothing"]),
        ("empty-step", lambda root: (shutil.rmtree(root + "/step-00000008"), os.mkdir(root + "/step-00000008")), None, [index, "missing"]),
    ]
    if LIBRARY:
        none = lambda root: None
        cases += [
            ("stale", none, "ESTALE:" + index, [index, "Stale file handle"]),
            ("io-error", none, "EIO:" + index, [index, "Input/output error"]),
            ("read-error", none, "EIO:" + index + ":open", [index, "Input/output error"]),
            ("denied", none, "EACCES:/checkpoints/latest:lstat,readlink", ["latest", "Permission denied"]),
            ("not-listed", none, "EACCES:/checkpoints:opendir,open", ["/checkpoints", "Permission denied"]),
        ]
    for name, change, faults, words in cases:
        path = copy_of(folder, "whole", name, change)
        before = tree(path)
        for ranks in (1, 2) if name == "no-index" else (1,):
            said = start(folder, name, ranks, CHECKPOINT, faults, run__steps=12)
            check(f"{name}: names path, reason and ways on", all(word in said for word in words + ["run.resume=newest-good", "run.resume=never"]), said)
        check(f"{name}: nothing was touched", tree(path) == before)
    newest_good(folder)


def newest_good(folder):
    reference = folder.losses("reference"), folder.hashes("reference")
    for name, faults, reason in (("no-index", None, "missing"), ("latest-loop", None, "Too many levels"), ("flipped", None, "checksum"),
                                 ("stale", "ESTALE:step-00000008/", "Stale file handle")):
        if faults and not LIBRARY:
            continue
        if name == "flipped":
            copy_of(folder, "whole", name, lambda root: flip_data(root + "/step-00000008"))
        said = start(folder, name, 2 if name == "flipped" else 1, 0, faults, run__resume="newest-good", run__steps=9, checkpoint__keep=1)
        found = 8 if name == "latest-loop" else 6
        check(f"newest-good, {name}: resumes from step {found}", f"at step {found} of 9" in said, said)
        check(f"newest-good, {name}: says what it skipped and why", "skipped" in said and reason in said, said)
        said = start(folder, name, 1, run__steps=12, run__resume="newest-good")
        check(f"newest-good, {name}: once more goes on from its own", "at step 9 of 12" in said and "skipped latest" not in said, said)
        check(f"newest-good, {name}: the bits of an undisturbed run",
              runs.same(name, folder.losses(name), reference[0]) and runs.same(name, folder.hashes(name), reference[1]))
    copy_of(folder, "whole", "all-bad", lambda root: [flip_data(f"{root}/step-{n:08d}") for n in (2, 4, 6, 8)])
    said = start(folder, "all-bad", 2, CHECKPOINT, run__resume="newest-good", run__steps=12)
    check("newest-good: none verifies", said.count("skipped") == 4 and "none of the run's checkpoints passes verification" in said, said)
    said = start(folder, "new", 2, run__resume="newest-good", run__steps=3)
    check("newest-good in a folder without checkpoints begins", sorted(folder.losses("new")) == [1, 2, 3], said)


def killed_after_a_save(folder, name, ranks, **keys):
    """Starts a run without end, kills all of it when it has saved; gives what it said and the step that `latest` leads to."""
    run = folder.start(name, ranks, **{**COMMON, "run__steps": FOR_EVER, **keys})
    runs.wait_until(lambda: run.process.poll() is not None or "\nsaved " in run.output(), "a save of its own")
    if not run.kill():
        check(f"{name}: was alive until it was killed", False, run.output())
    said = run.output()
    return int(re.search(r"resumed from \S+ at step (\d+) of", said).group(1)), int(link(folder, name)[-8:]), said


def going_back(folder):
    """A job with run.resume=RUN/checkpoints/step-4 that is killed and queued again, with checkpoint.keep = 1."""
    name = "back"
    copy_of(folder, "whole", name, lambda root: None)
    back = {"run__resume": step_path(folder, name, 4), "checkpoint__keep": 1}
    first, last, said = killed_after_a_save(folder, name, 2, **back)
    check(f"goes back to step 4 ({first})", first == 4 and "step 5" not in said.split("resumed from")[0], said)
    for again in range(3):
        first, after, said = killed_after_a_save(folder, name, 1 + again % 2, **back)
        check(f"start {again + 2}: resumes from step {last}, not from 4 ({first})", first == last and "returned to step 4 already" in said, said)
        last = after
    check("checkpoint.keep has removed step 4 meanwhile", 4 not in steps_there(folder, name), str(steps_there(folder, name)))
    said = start(folder, name, 2, run__steps=last + 1, **back)
    check("the same command goes on without step 4", f"at step {last} of {last + 1}" in said, said)
    check("only the newest is left of both lines", steps_there(folder, name) == [last + 1], str(steps_there(folder, name)))
    rows = steps_of(folder.run(name) + "/metrics.jsonl")
    check("metrics.jsonl has each step once, in order", rows == list(range(1, last + 2)), str(rows))
    losses, reference = folder.losses(name), folder.losses("reference")
    check("the bits of an undisturbed run", all(losses[step] == reference[step] for step in reference if step in losses))


def abandoned(folder):
    """What a line left behind stays until the new one has `keep` of its own and has overtaken it."""
    name = "abandoned"
    copy_of(folder, "whole", name, lambda root: None)
    back = {"run__resume": step_path(folder, name, 2), "checkpoint__keep": 2}
    start(folder, name, run__steps=3, **back)
    check("one save of the new line removes nothing", steps_there(folder, name) == [2, 3, 4, 6, 8], str(steps_there(folder, name)))
    start(folder, name, run__steps=5, **back)
    check("with keep = 2 of its own only what is ahead stays", steps_there(folder, name) == [4, 5, 6, 8], str(steps_there(folder, name)))
    start(folder, name, run__steps=9, **back)
    check("what it has overtaken is gone", steps_there(folder, name) == [8, 9], str(steps_there(folder, name)))


def copied(folder):
    name = "copied"
    subprocess.run(["cp", "-rL", folder.run("whole"), folder.run(name)], check=True)
    check("the copy's latest is a folder", not os.path.islink(folder.latest(name)))
    said = start(folder, name, 2, run__steps=12)
    check("it goes on from there", "at step 8 of 12" in said and link(folder, name) == "step-00000012", said)
    check("to the bits of the original", runs.same(name, folder.hashes(name), folder.hashes("reference")))
    only = "only-latest"
    os.makedirs(folder.run(only) + "/checkpoints")
    shutil.copytree(step_path(folder, "whole", 8), folder.latest(only))
    shutil.copy(folder.run("whole") + "/deck.toml", folder.run(only))
    said = start(folder, only, run__steps=12, checkpoint__keep=0)
    check("a copy of latest alone goes on", "at step 8 of 12" in said and 8 in steps_there(folder, only), said)


def events_of(folder, name):
    with open(folder.run(name) + "/events.jsonl") as lines:
        return [json.loads(line) for line in lines]


def moved_while_running(folder):
    name, path = "moved", folder.run("moved")
    metrics = path + "/metrics.jsonl"
    run = folder.start(name, 2, **{**COMMON, "run__steps": FOR_EVER})
    run.wait_for_step(3)
    os.remove(metrics)
    runs.wait_until(lambda: os.path.exists(metrics) or run.process.poll() is not None, "metrics.jsonl to come back")
    run.wait_for_step(6)
    os.rename(path, path + "-away")
    runs.wait_until(lambda: link(folder, name) or run.process.poll() is not None, "a checkpoint in the folder that was made again")
    run.signal_ranks(signal.SIGTERM)
    status, said = run.wait(), run.output()
    check(f"moved: status {status}", status == 75, said)
    check("moved: each was said once", said.count("metrics.jsonl was moved, removed or replaced") == 2 and said.count(path + " was moved or removed") == 1, said)
    steps = steps_of(metrics)
    check("moved: metrics.jsonl has every step", steps == list(range(1, len(steps) + 1)) and len(steps) >= 6, str(steps[:50]))
    history = events_of(folder, name)
    check("moved: events.jsonl has the history from the first launch to the end", [event["event"] for event in history][:2] == ["start", "training"] and
          history[0]["step"] == 0 and history[-1]["event"] == "end" and history[-1]["reason"] == "signal", str(history))
    said = start(folder, name, 1, run__steps=len(steps) + 1)
    check("moved: goes on in the folder that was made again", f"at step {len(steps)} of" in said, said)


OTHER = "another run is writing in"


def together(folder):
    """Two starts in one new folder, at the same time: in whatever order they come to it, the second sees all of the first."""
    for name, keys in (("twins", {}), ("strangers", {"run__seed": 7})):
        both = [runs.Running(folder.command(name, 1, **{**COMMON, "run__steps": 8, **more}), folder.run(name), f"{folder.path}/{name}-{number}.log")
                for number, more in enumerate(({}, keys))]
        ends = [(run.wait(), run.output()) for run in both]
        said = "\n".join(text for _, text in ends)
        # The second goes on after the first, is refused as another deck's, or has waited too long for a slow machine.
        late = [text for status, text in ends if status in ((0,) if not keys else ()) and "all 8 steps are done already" in text]
        late += [text for status, text in ends if status == ENVIRONMENT and OTHER in text]
        late += [text for status, text in ends if keys and status == USAGE and "holds a run of another deck" in text]
        first = [text for status, text in ends if status == 0 and "all 8 steps are done already" not in text]
        check(f"{name}: one is first, the other sees it", len(first) == 1 and len(late) == 1, said)
        check(f"{name}: metrics.jsonl has each step once, of one run", steps_of(folder.run(name) + "/metrics.jsonl") == list(range(1, 9)), said)
        check(f"{name}: the checkpoints are those of the first", steps_there(folder, name) == [6, 8] and len(first) == 1
              and first[0].count("\nsaved ") == 4, said)
        with open(folder.run(name) + "/deck.toml") as deck:
            seed = re.search(r"seed = (\d+)", deck.read()).group(1)
        # The log shows a seed only if it is not the default.
        check(f"{name}: the deck is the first's", ["seed = 7" in text for text in first] == [seed == "7"], said)


def comes_while_locked(folder):
    """What the folder holds is decided by what stands there when the other run has gone, not by what stood there before."""
    name = "requeued"
    os.makedirs(folder.run(name))
    with open(folder.run(name) + "/run.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("process 1 on elsewhere\nclaim 0\nleaves\n")  # so that it is waited for as long as it takes
        lock.flush()
        run = folder.start(name, 2, **{**COMMON, "run__steps": 12, "run__resume": "auto"})
        runs.wait_until(lambda: OTHER in run.output() or run.ended(), "a start that comes to the lock")
        shutil.copytree(folder.run("whole"), folder.run(name), symlinks=True, dirs_exist_ok=True, ignore=lambda *_: ["run.lock"])
    status, said = run.wait(), run.output()
    check(f"requeued: status {status}", status == 0, said)
    check("requeued: says for whom it waits, once", said.count(f"{OTHER} {folder.run(name)}: process 1 on elsewhere. It saves and ends") == 1, said)
    check("requeued: goes on from what was saved meanwhile", "at step 8 of 12" in said, said)
    check("requeued: no step is lost or done twice", steps_of(folder.run(name) + "/metrics.jsonl") == list(range(1, 13)), said)
    check("requeued: the bits of an undisturbed run", runs.same(name, folder.hashes(name), folder.hashes("reference")))


def overlaps_a_stop(folder):
    """A job that Slurm starts again while its ranks are still saving."""
    name = "overlap"
    first = folder.start(name, 2, **{**COMMON, "run__steps": FOR_EVER})
    first.wait_for_step(3)
    command = folder.command(name, 2, **{**COMMON, "run__steps": FOR_EVER})
    second = runs.Running(command, folder.run(name), folder.path + "/overlap-second.log")
    runs.wait_until(lambda: OTHER in second.output() or second.ended(), "the second start to come to the lock")
    first.signal_ranks(signal.SIGTERM)
    status, said = first.wait(), first.output()
    check(f"overlap: the first leaves with {status}", status == STOPPED, said)
    saved = int(link(folder, name)[-8:])
    runs.wait_until(lambda: second.steps_done() > saved or second.ended(), "the second to go on")
    if second.ended():  # it had waited ten seconds before the first came to its end, as a job script tells it by the status
        check("overlap: a second that gives up says so", second.wait() == ENVIRONMENT and OTHER in second.output(), second.output())
        second = runs.Running(command, folder.run(name), folder.path + "/overlap-second.log")
        second.wait_for_step(saved + 1)
    second.signal_ranks(signal.SIGTERM)
    status, said = second.wait(), second.output()
    check(f"overlap: the second leaves with {status}", status == STOPPED, said)
    check("overlap: it went on from what the first saved", f"at step {saved} of" in said, said)
    steps = steps_of(folder.run(name) + "/metrics.jsonl")
    check("overlap: no step is lost or done twice", steps == list(range(1, len(steps) + 1)) and len(steps) > saved, str(steps[-50:]))


def stopped_while_it_waits(folder):
    """A start that waits for another run hears a signal."""
    name = "waits"
    os.makedirs(folder.run(name))
    with open(folder.run(name) + "/run.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("process 1 on elsewhere\nleaves\n")
        lock.flush()
        run = folder.start(name, 2, **COMMON)
        runs.wait_until(lambda: OTHER in run.output() or run.ended(), "a start that comes to the lock")
        run.signal_ranks(signal.SIGTERM, 1)
        status = run.wait()
    check(f"waits: stopped with {status}", status == STOPPED, run.output())
    check("waits: leaves nothing", os.listdir(folder.run(name)) == ["run.lock"])


def full_disk(folder):
    if not LIBRARY:
        return
    said = start(folder, "little", 1, run__steps=3, free=300 << 10)
    found = re.search(r"warning: .*the saves of this run need ([\d.]+ \w+) at once .*checkpoint.keep = 2.* has ([\d.]+ \w+)\s+free", said)
    check("a disk without room for keep + 1 saves is foreseen", found and found.group(2) == "300.00 KiB", said)
    said = start(folder, "none", 1, run__steps=7, free=48 << 10)
    found = re.findall(r"warning: step 2: the next saves need [\d.]+ \w+ at once, but (\S+) has 48.00 KiB free", said.replace("\n", " "))
    check("after a save the room for the next ones is looked at, and said once", found == [f"{folder.run('none')}/checkpoints"] and
          said.count("the next saves need") == 1, said)
    said = start(folder, "enough", 1, run__steps=3, free=1 << 30)
    check("one with room is not complained of", "at once" not in said, said)
    said = start(folder, "no-save", 1, STORAGE, "ENOSPC:step-00000002.partial/shard:open", run__steps=3, checkpoint__retries=0)
    check("a first save that fails has none before it", "No space left" in said and "there is none before it" in said and "intact" not in said, said)
    check("what is full is the disk", "The disk is full (" in said, said)
    said = start(folder, "no-files", 1, STORAGE, "ENOSPC:step-00000002.partial/shard:open", free=5 << 20, free_files=0, run__steps=3, checkpoint__retries=0)
    check("or its table of files", "as many files as it can (1000 inodes, none free; 5.00 MiB free" in said and "disk is full" not in said, said)
    said = start(folder, "no-save", 1, STORAGE, "ENOSPC:step-00000004.partial/shard:open", run__steps=5, checkpoint__retries=0)
    check("a later one names the one before it", f"the one before it is intact: {step_path(folder, 'no-save', 2)}" in said, said)
    said = start(folder, "no-save", 1, 0, "ENOSPC:step-00000004.partial/shard:open", run__steps=7, checkpoint__keep=0)
    check("one that may be tried again is, after the next step", "It is tried again after the next step: 1 of 3" in said
          and os.path.exists(step_path(folder, "no-save", 5)) and not os.path.exists(step_path(folder, "no-save", 4)), said)


def advice_of_numerics(folder):
    """The advice that status 8 gives is followed, to the end."""
    wild = {"optimizer__learning_rate": 1000, "optimizer__weight_decay": 1000, "learning_rate__warmup_steps": 0, "checkpoint__every": 0}
    said = start(folder, "wild", 1, NUMERICS, run__resume=step_path(folder, "whole", 2), run__steps=30, **wild)
    advice = re.search(r"run\.output_dir=NEW (run\.resume=\S+) and the new keys", said)
    check("status 8 says how to go on", advice, said)
    if advice:
        start(folder, "tamed", 2, run__resume=advice.group(1).split("=", 1)[1], optimizer__learning_rate=1e-4, run__steps=12)
        check("and that works", sorted(folder.losses("tamed")) == list(range(3, 13)))
    said = start(folder, "wilder", 1, NUMERICS, run__steps=30, **wild)
    check("status 8 without a checkpoint names none", "there is no checkpoint to start from" in said, said)


def by_its_folder(folder):
    """`tessera resume RUN` goes on by what lies in the folder, on other ranks and wherever the folder lies now."""
    start(folder, "begun", 2, run__steps=5)
    os.rename(folder.run("begun"), folder.run("moved-on"))
    done = runs.tessera("resume", folder.run("moved-on"), "run.steps=12", "zero.stage=2", ranks=3)
    check("tessera resume goes on", done.returncode == 0 and "resumed from" in done.stderr, done.stderr)
    check("to the undisturbed bits", folder.hashes("moved-on") == folder.hashes("reference"))
    done = runs.tessera("resume", folder.run("moved-on"))
    check("and with the steps of its folder", done.returncode == 0 and "all 12 steps are done already" in done.stderr, done.stderr)
    done = runs.tessera("resume", folder.run("nobody"))
    check("a folder without a run is refused", done.returncode == USAGE and "it holds no run" in done.stderr and not os.path.exists(folder.run("nobody")), done.stderr)


def main():
    with runs.Folder() as folder:
        start(folder, "reference", 1, run__steps=12, checkpoint__keep=0)
        start(folder, "whole", 1, run__steps=8, checkpoint__keep=0)
        for part in (unreadable, going_back, abandoned, copied, moved_while_running, together, comes_while_locked, overlaps_a_stop,
                     stopped_while_it_waits, full_disk, advice_of_numerics, by_its_folder):
            part(folder)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
