#!/usr/bin/env python3
"""A signal at every point of a run's start: before the program's first instruction, before its first line, at each of the calls by which the
ranks meet, while MPI hangs, and 0, 5, 10 ... ms after the launch. The run always ends with 75, having saved or with nothing to save, and the
same command goes on to the bits of a run that was never stopped.    start_signals.py LIBRARY (of signal_at.cpp)"""
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

LIBRARY = sys.argv[1]
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
COMMON = {"run__reproducible": True, "run__threads": 1, "batch__global": 12, "learning_rate__schedule": "constant"}
ENDLESS = {**COMMON, **runs.ENDLESS, "checkpoint__every": 1}  # a save is full of calls: an event always comes
INTERRUPTED, NOTHING, SAVED = 75, "before the first step: there is nothing to save", "after saving; start the same command again"
check = runs.Checks()


def end_of(folder, command, hold=(), pending=None, ignore=None, after=None, number=None):
    """Runs a command to its end: (status, output, its report). hold: signals that are blocked when it starts. pending: one that has arrived
    by then. ignore: one that is ignored. number: a signal that is sent `after` so many seconds."""
    report = os.path.join(folder.path, "status")

    def before_exec():
        signal.pthread_sigmask(signal.SIG_BLOCK, hold)
        if ignore:
            signal.signal(ignore, signal.SIG_IGN)
        if pending:
            os.kill(os.getpid(), pending)

    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               preexec_fn=before_exec, env={**os.environ, "TESSERA_STATUS_FILE": report})
    if number:
        try:
            process.wait(after)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
    try:
        output = process.communicate(timeout=runs.HANG_SECONDS)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        sys.exit(f"FAIL {command}: still running\n{process.communicate()[0]}")
    text = ""
    if os.path.exists(report):
        with open(report) as lines:
            text = lines.read()
        os.remove(report)
    return process.returncode, output, text


def expect_stop(what, folder, command, **more):
    """Whether it had something to save."""
    status, output, report = end_of(folder, command, **more)
    saved = SAVED in output
    check(f"{what}: status {status}, {'saved' if saved else 'nothing to save'}",
          status == INTERRUPTED and (saved or NOTHING in output) and "error: " not in output, output)
    check(f"{what}: is reported", report.startswith("status 75\nsaved " + ("" if saved else "nothing\n")), report)
    return saved


def signalled_at(command, number, event, rank=None, hang=False):
    """The command with a signal at that event of a rank, whether mpiexec starts it or not."""
    # The library knows no sanitizer, and comes first by design.
    asan = (os.environ.get("ASAN_OPTIONS", "") + ":verify_asan_link_order=0").lstrip(":")
    shim = ["env", f"LD_PRELOAD={LIBRARY}", f"SIGNAL_AT={event}", f"SIGNAL={int(number)}", f"ASAN_OPTIONS={asan}"]
    shim += [f"SIGNAL_RANK={rank}"] if rank is not None else []
    shim += ["SIGNAL_HANG=1"] if hang else []
    at = command.index(runs.TESSERA)
    return command[:at] + shim + command[at:]


def at_every_event(folder, name, ranks, first, step):
    """Signals a later event each time until one finds something to save; then the run has begun. The folder's next runs load what it left."""
    event, stops = first, 0
    while True:
        number = SIGNALS[stops % len(SIGNALS)]
        command = signalled_at(folder.command(name, ranks, **ENDLESS), number, event, ranks - 1)
        saved = expect_stop(f"{number.name} to rank {ranks - 1} of {ranks} at event {event} of {name}", folder, command)
        stops += 1
        if saved or not check.good:
            return stops
        event += step


def bits(folder, name, ranks):
    """The same command to its end, beside a run that was never stopped."""
    steps = int(os.readlink(folder.latest(name))[-8:]) + 2
    folder.train(name, ranks, **{**COMMON, "run__steps": steps})
    folder.train("never-stopped", 1, **{**COMMON, "run__steps": steps, "run__overwrite": True, "run__resume": "never"})
    check(f"{name}: losses", runs.same(name, folder.losses(name), folder.losses("never-stopped")))
    check(f"{name}: state", runs.same(name, folder.hashes(name), folder.hashes("never-stopped")))


def main():
    with runs.Folder() as folder:
        alone = folder.command("alone", 1, **ENDLESS)
        for number in SIGNALS:
            saved = expect_stop(f"{number.name} before the program's first instruction", folder, alone, hold=SIGNALS, pending=number)
            check("which saves nothing", not saved)
            expect_stop(f"{number.name} before the program's first line", folder, signalled_at(alone, number, 0))
        check("a run that was stopped before its first step leaves no checkpoint", not os.path.exists(folder.latest("alone")))
        for milliseconds in (0, 5, 10, 20, 40, 80, 160):
            expect_stop(f"SIGUSR1 after {milliseconds} ms", folder, alone, hold=SIGNALS, number=signal.SIGUSR1, after=milliseconds / 1000)

        stops = at_every_event(folder, "fresh", 2, 0, 5)
        check(f"the start of a fresh run has several points ({stops})", stops > 4)
        stops = at_every_event(folder, "fresh", 2, 3, 7)
        check(f"the start of a run with a checkpoint has several points ({stops})", stops > 3)
        bits(folder, "fresh", 2)

        # MPI waits for a rank that never comes: nobody looks at the request, and it is granted all the same.
        saved = expect_stop("SIGTERM while MPI hangs", folder, signalled_at(alone, signal.SIGTERM, 1, hang=True))
        check("which saves nothing", not saved)

        # nohup: what was ignored at the start stays ignored.
        command = folder.command("ignoring", 1, **COMMON, run__steps=6)
        status, output, report = end_of(folder, signalled_at(command, signal.SIGHUP, 3), ignore=signal.SIGHUP)
        check("SIGHUP that is ignored changes nothing", status == 0 and report == "status 0\nsaved 6\n", output + report)

        # Commands that have nothing to save end by the signal as ever.
        status, output, _ = end_of(folder, [runs.TESSERA, "deck", "check", folder.deck], hold=SIGNALS[1:], pending=signal.SIGUSR1)
        check(f"another command that is started with a blocked signal does not see it: status {status}", status == 0, output)
        shim = signalled_at([runs.TESSERA, "deck", "check", folder.deck], signal.SIGTERM, 0)
        status, output, _ = end_of(folder, shim)
        check(f"another command ends by the signal: status {status}", status == -signal.SIGTERM, output)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
