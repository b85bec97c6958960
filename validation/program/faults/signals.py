#!/usr/bin/env python3
"""SIGTERM, SIGINT, SIGUSR1 and SIGHUP to all ranks or to one: the run saves, ends with 75, and the same command goes on to the bits of a run
that was never stopped. SIGSTOP to one: the others end the run. The same signals (but SIGHUP, which ends it) to mpiexec itself, which passes them on
to the ranks (Open MPI's turns SIGTERM and SIGINT into SIGTERM, followed by SIGKILL after a time that it is told); a Ctrl-C on a terminal comes that way too, since the
ranks have sessions of their own, or process groups."""
import os
import re
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

LOST = 76  # exit status
MORE = 5  # steps after the one at which a run was stopped
COMMON = {**runs.ENDLESS, "run__reproducible": True, "run__threads": 1, "batch__global": 12}
check = runs.Checks()


def saved_step(folder, name):
    link = folder.latest(name)
    return int(os.readlink(link)[-8:]) if os.path.islink(link) else 0


def interruptible(pids):
    """Threads that do not block the signals, but for the one that waits for them. There must be none: a handler's frame would land wherever a product has put its stack
    pointer, oneDNN's in the middle of the heap."""
    found = []
    for pid in pids:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/status") as status:
                fields = dict(line.rstrip("\n").split(":\t", 1) for line in status)
            blocked = int(fields["SigBlk"], 16)
            if fields["Name"] != "signals" and any(not blocked >> (n - 1) & 1 for n in (*runs.STOP_SIGNALS, signal.SIGHUP)):
                found.append(f"{fields['Name']} of {pid}")
    return found


def stop_and_resume(folder, reference, number, ranks, which=None, launcher=False, resume=None):
    """which: the rank that gets the signal, None for all of them. launcher: mpiexec gets it instead."""
    short = signal.Signals(number).name
    to = "mpiexec" if launcher else "all ranks" if which is None else f"rank {which} alone"
    name, what = f"{short}-{to}-{ranks}".replace(" ", "-"), f"{short} to {to} of {ranks}"
    run = folder.start(name, ranks, zero__stage=ranks % 4, **COMMON)
    run.wait_for_step(3)
    pids, open_to = run.everybody(), interruptible(run.ranks())
    check(f"{what}: no thread can be interrupted", not open_to, ", ".join(open_to))
    if launcher and number == signal.SIGINT:
        os.killpg(run.process.pid, number)  # as a terminal does
    elif launcher:
        os.kill(run.process.pid, number)
    else:
        run.signal_ranks(number, which)
    status, output = run.wait(), run.output()
    # MPICH 4.0.2's mpiexec sometimes ends with 0 after a signal to itself, whatever the ranks ended with; Open MPI's with 1, but for SIGUSR1.
    allowed = (75, 1 if runs.OPEN_MPI else 0) if launcher else (75,)
    check(f"{what}: status {status}", status in allowed, output)
    runs.wait_until_gone(pids)
    step, last = saved_step(folder, name), run.steps_done()
    check(f"{what}: saved after step {step}, the last one that was done ({last})", 0 < step == last, output)
    check(f"{what}: says what to do next", "after saving; start the same command again to continue" in output, output)
    end = last + MORE
    resumed = folder.train(name, resume or ranks, zero__stage=(ranks + 1) % 4, **{**COMMON, "run__steps": end})
    check(f"{what}: goes on after that step", f"at step {last} of {end}" in resumed.stderr, resumed.stderr)
    losses, state = reference.at(end)
    check(f"{what}: resumed losses", runs.same(name, folder.losses(name), losses))
    check(f"{what}: resumed state", runs.same(name, folder.hashes(name), state))


def inside_an_evaluation(folder, reference, ranks, **layout):
    """One that would last for years: it is broken off, and the step before it is saved."""
    name = f"evaluation-{ranks}"
    endless = {**COMMON, **layout, "data__validation": folder.data, "evaluate__every": 2, "evaluate__batches": 10**7}
    run = folder.start(name, ranks, **endless)
    run.wait_for_step(2)  # the evaluation follows, which the run does not leave by itself
    run.signal_ranks(signal.SIGTERM, ranks - 1)
    status, output = run.wait(), run.output()
    check(f"{name}: status {status}", status == 75, output)
    check(f"{name}: the step before it is saved", saved_step(folder, name) == run.steps_done() == 2, output)
    check(f"{name}: says that its validation loss is still to come", "step 2: the evaluation was interrupted" in output and "when the run resumes" in output, output)
    few = {**endless, "evaluate__batches": 4, "run__steps": 5}
    folder.train(name, ranks, **few)
    folder.train(name + "-undisturbed", ranks, **few)
    evaluated, wanted = ([(row["step"], row["val_loss"]) for row in folder.metrics(one) if "val_loss" in row] for one in (name, name + "-undisturbed"))
    check(f"{name}: goes on with the evaluation that was due", evaluated == wanted and [step for step, _ in wanted] == [2, 4, 5], f"{evaluated} instead of {wanted}")
    folder.train(name, ranks, **few)
    check(f"{name}: and makes none twice", evaluated == [(row["step"], row["val_loss"]) for row in folder.metrics(name) if "val_loss" in row])
    losses, state = reference.at(5)
    check(f"{name}: resumed losses", runs.same(name, folder.losses(name), losses))
    check(f"{name}: resumed state", runs.same(name, folder.hashes(name), state))


def stalled(folder):
    """A rank that neither works nor dies: the others give up after topology.collective_timeout, which leaves time to start on a busy machine."""
    run = folder.start("stalled", 2, topology__collective_timeout="5 s", **COMMON)
    run.wait_for_step(3)
    pids = run.everybody()
    run.signal_ranks(signal.SIGSTOP, 1)
    status, output = run.wait(), run.output()
    check(f"a stalled rank: status {status}", status == LOST, output)
    check("a stalled rank: says how long it waited, and for what", re.search(r"waited \d+ s in", output) and "rank 1 did not arrive" in output, output)
    check("a stalled rank: is named with its host and its task", re.search(r"rank 1 on \S+ does not answer: it is stopped", output), output)
    runs.wait_until_gone(pids)


def suspended(folder):
    """All ranks are stopped for longer than a collective may last, one after the other as scontrol suspend does it, and go on: nobody gives up."""
    run = folder.start("suspended", 2, topology__collective_timeout="5 s", **COMMON)
    run.wait_for_step(3)
    run.signal_ranks(signal.SIGSTOP, 1)
    time.sleep(1)  # the other one now waits
    run.signal_ranks(signal.SIGSTOP, 0)
    time.sleep(7)  # longer than the limit: time itself is what is tested
    stopped = run.steps_done()
    run.signal_ranks(signal.SIGCONT, 0)
    run.signal_ranks(signal.SIGCONT, 1)
    run.wait_for_step(stopped + 3)
    run.signal_ranks(signal.SIGTERM)
    status, output = run.wait(), run.output()
    check(f"a suspended run goes on and can be stopped: status {status}", status == 75, output)


def reader_that_ends(folder):
    """What reads the log ends first, as tee does at a Ctrl-C: the run goes on, saves when it is asked to, and its words stand in its folder."""
    pids = subprocess.Popen(folder.command("unread", 1, **{**COMMON, "run__log_every": 1}), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    for line in pids.stderr:
        if line.startswith("step "):
            break
    pids.stderr.close()
    log = os.path.join(folder.run("unread"), "log.txt")
    runs.wait_until(lambda: os.path.exists(log) and "step " in open(log).read() or pids.poll() is not None, "words in log.txt")
    pids.send_signal(signal.SIGINT)
    status, words = pids.wait(), open(log).read()
    check(f"a log without its reader: status {status}", status == 75 and saved_step(folder, "unread") > 0, words)
    check("a log without its reader: says so, and all of its end", "the log continues here" in words.splitlines()[0] and "stopped by SIGINT after saving" in words, words)
    last = saved_step(folder, "unread") + 1
    done = folder.train("unread", 1, **{**COMMON, "run__steps": last})
    check("the next start says where the words went", "unread/log.txt holds" in done.stderr, done.stderr)


def main():
    # More than any save takes. Where a rank ends before the others, mpiexec stays so long after the last of them has ended.
    os.environ["OMPI_MCA_odls_base_sigkill_timeout"] = "60"
    with runs.Folder() as folder:
        reference = runs.Reference(folder, **COMMON)
        stop_and_resume(folder, reference, signal.SIGTERM, 2, resume=3)
        stop_and_resume(folder, reference, signal.SIGINT, 2, resume=1)
        stop_and_resume(folder, reference, signal.SIGUSR1, 3, resume=2)
        stop_and_resume(folder, reference, signal.SIGTERM, 2, which=1)
        stop_and_resume(folder, reference, signal.SIGUSR1, 2, which=0)
        stop_and_resume(folder, reference, signal.SIGINT, 3, which=2, resume=2)
        stop_and_resume(folder, reference, signal.SIGTERM, 1, resume=2)
        stop_and_resume(folder, reference, signal.SIGINT, 1)
        stop_and_resume(folder, reference, signal.SIGHUP, 2)
        for number in runs.STOP_SIGNALS:
            stop_and_resume(folder, reference, number, 2, launcher=True)
        inside_an_evaluation(folder, reference, 1)
        inside_an_evaluation(folder, reference, 3, zero__stage=3)
        inside_an_evaluation(folder, reference, 2, mesh__pp=2)
        stalled(folder)
        suspended(folder)
        reader_that_ends(folder)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
