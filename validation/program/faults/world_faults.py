#!/usr/bin/env python3
"""Runs world_fault in every way that a run can fail, and checks how it ends: every process gone, the documented exit status, and the
first cause as the last line.    world_faults.py PROGRAM"""
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

program = sys.argv[1]
mpiexec = runs.MPIEXEC
ANY, LOST = "any", 76
HANG_SECONDS = 300  # a bound against hangs: a failing run ends in under two
# A launcher that does not see a rank's death: a shell keeps its place. The second kind says how its rank ended, and stays until all have.
UNSEEN = ["sh", "-c", f'"$0" "$@"; exec sleep {HANG_SECONDS}']
TELLING = ["sh", "-c", '"$0" "$@"; echo "a rank ended with $?"; : >"$ENDED/$$"; until [ "$(ls "$ENDED" | wc -l)" -ge "$%s" ]; do sleep 0.05; done' % runs.RANKS]


def run(command, environment=None):
    start = time.time()
    with tempfile.TemporaryDirectory() as folder:
        report = os.path.join(folder, "status")
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=HANG_SECONDS,
                              env={**os.environ, "TESSERA_STATUS_FILE": report, **(environment or {})})
        said = ""
        if os.path.exists(report):
            with open(report) as text:
                said = text.read()
        if left := set(os.listdir(folder)) - {"status"}:
            said += f"beside it: {left}"
    return done.returncode, done.stdout, time.time() - start, said


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def check(name, command, status, last, once=None, ranks=3, environment=None, has="", times=None, reported=None):
    """status: the exit status, or several that are allowed; None for any but 0, ANY. last: a pattern for the last line. once: text that stands exactly once. has: at least
    once. times: how often each of these texts stands. reported: the status in the report, where the launcher's says less."""
    faults = []
    try:
        code, output, seconds, report = run(command, environment)
    except subprocess.TimeoutExpired as expired:
        print(f"FAIL {name}: still running after {HANG_SECONDS} s; output:\n{expired.stdout}")
        return False
    # The launcher may pass on what one rank said before what another said earlier, so these are nobody's last words.
    lines = [line for line in runs.own_lines(output) if not re.search(r"^pid \d+$|\btraining$", line)]
    pids = [int(pid) for pid in re.findall(r"^pid (\d+)$", output, re.M)]
    if len(pids) != ranks:
        faults.append(f"{len(pids)} ranks had started, not {ranks}")
    deadline = time.time() + HANG_SECONDS
    while any(alive(pid) for pid in pids) and time.time() < deadline:
        time.sleep(0.05)
    left = [pid for pid in pids if alive(pid)]
    if left:
        faults.append(f"processes {left} outlived the run")
    if status != ANY and (code == 0 if status is None else code not in (status if isinstance(status, tuple) else (status,))):
        faults.append(f"exit status {code}, expected {'not 0' if status is None else status}")
    reported = status if reported is None else reported
    if isinstance(reported, int) and report != f"status {reported}\nsaved nothing\n":
        faults.append(f"{report!r} is reported")
    if last and not (lines and re.search(last, lines[-1])):
        faults.append(f"the last line does not match {last!r}")
    if has not in output:
        faults.append(f"{has!r} is not said")
    for text, count in {**({once: 1} if once else {}), **(times or {})}.items():
        if output.count(text) != count:
            faults.append(f"{text!r} stands {output.count(text)} times, not {count}")
    print(f"{'FAIL' if faults else 'ok  '} {name}: status {code}, {seconds:.2f} s" + "".join(f"\n     {fault}" for fault in faults))
    if faults:
        print("     output:\n" + "\n".join("     | " + line for line in output.splitlines()))
    return not faults


def last_words():
    """What a rank says to MPICH's mpiexec when it ends beside an MPI that has not come up: an end of which nothing is said is one with status 1, unless
    the launcher sees it at once. Here the launcher is this test, which never answers."""
    good = True
    for what, fault, signals, status in (("others never come", "absent", [], LOST), ("it is asked to stop", "none", [signal.SIGTERM], 75),
                                         ("it is asked to leave twice", "none", [signal.SIGINT, signal.SIGINT], 130)):
        mine, its = socket.socketpair()
        with mine, its:
            rank = subprocess.Popen([program, fault], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                    pass_fds=[its.fileno()], env={**os.environ, "PMI_FD": str(its.fileno()), "PMI_RANK": "0", "PMI_SIZE": "2"})
            its.close()
            mine.settimeout(HANG_SECONDS)
            said = mine.recv(4096)  # the first question of MPI_Init: signals are watched from before
            for number in signals:
                # One that waits takes another of its number in.
                runs.wait_until(lambda: taken(rank.pid, number), "the signal before to be taken")
                rank.send_signal(number)
            while part := mine.recv(4096):
                said += part
            output, code = rank.communicate(timeout=HANG_SECONDS)[0], rank.returncode
        ok = code == status and said.endswith(f"\ncmd=abort exitcode={status}\n".encode())
        good &= ok
        print(f"{'ok  ' if ok else 'FAIL'} the launcher is told when {what}: status {code}, {said.splitlines()[-1].decode()}")
        if not ok:
            print(output)
    return good


def taken(pid, number):
    """Whether no signal of this number is pending in the process."""
    with open(f"/proc/{pid}/status") as status:
        pending = int(re.search(r"^ShdPnd:\s*(\w+)", status.read(), re.M).group(1), 16)
    return not pending >> (number - 1) & 1


def starts(launch):
    """Launches in which a rank comes late, or never."""
    good = True
    for late in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            go, log = os.path.join(folder, "go"), os.path.join(folder, "log")
            second = ["sh", "-c", f'until [ -e "{go}" ]; do sleep 0.05; done; exec "$0" "$@"', program, "none"] if late else ["sleep", str(HANG_SECONDS)]
            command = [mpiexec, "-n", "1", program, "none" if late else "absent", os.path.join(folder, "runs", "x"), ":", "-n", "1", *second]
            with open(log, "w") as out:
                run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
            said = "of 2 ranks 1 has not come; rank 0 on "
            deadline = time.time() + HANG_SECONDS
            while said not in open(log).read() and run.poll() is None and time.time() < deadline:
                time.sleep(0.02)
            waiting = [name for name in os.listdir(folder) if name.startswith(".tessera-start-")]
            open(go, "w").close()
            status, output = run.wait(HANG_SECONDS), open(log).read()
            left = [name for name in os.listdir(folder) if name not in ("go", "log")]
            faults = [] if said in output else ["who is missing is not said"]
            faults += [] if status == (0 if late else LOST) else [f"exit status {status}"]
            faults += [] if waiting or not late else ["the waiting rank showed itself nowhere"]
            faults += [f"{left} are left"] if left else []
            faults += [] if late or "and the job ends" in output else ["the end is not explained"]
            print(f"{'FAIL' if faults else 'ok  '} a rank that comes {'late' if late else 'never'}: status {status}" + "".join(f"\n     {f}" for f in faults))
            if faults:
                print("     output:\n" + "\n".join("     | " + line for line in output.splitlines()))
            good &= not faults
    return good


def main():
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # some ranks end by SIGABRT
    launch = [mpiexec, "-n", "3"]
    good = True

    def expect(fault, status, last, launch=launch, **more):
        nonlocal good
        over = " over nodes" if "unshare" in launch else " over TCP" if more.get("environment") else ""
        with tempfile.TemporaryDirectory() as ended:
            os.environ["ENDED"] = ended
            good &= check(f"{fault}{over}{' unseen by the launcher' if 'sleep' in launch[-1] else ''}", [*launch, program, fault], status, last, **more)

    expect("none", 0, "")
    expect("status", 4, "")
    for over in ("", "-over-mpi"):
        expect("throw" + over, 3, "rank 1: error: train.h5: token 70000 at position 12", once="error:")
        expect("lane" + over, 7, "rank 1: error: shard-00001.h5: no space left", once="error:")
        # The dead rank has no words. Its status is that of signal 9, or another's that saw it die before the launcher did.
        expect("kill" + over, (137 if runs.OPEN_MPI else 9, LOST), "")
    expect("exception", 1, "rank 1: error: something else went wrong", once="error:")
    expect("together", 2, "rank 0: error: deck.toml:3: zero.stage = 7", once="error:")
    expect("together-one", 3, "rank 1: error: train.h5 cannot be opened", once="error:")
    expect("everybody", 8, "error: the loss is not finite at step 3", once="error:")
    idle = r"^  rank 1 on \S+ runs no task and waits in no collective$"
    expect("stall", LOST, idle, once="error:", has="(axis dp, lane reduce, call 1): rank 1 did not arrive; ranks 0, 2 on ")
    expect("stall-over-mpi", LOST, idle, once="error:", has="s in all_reduce (axis dp, lane reduce, call 1); ranks 0, 2 on ")
    expect("stall-apart-over-mpi", LOST, idle, once="error:", has="s in all_reduce (axis dp, lane reduce, call 1); ranks 0, 2 on ")
    expect("stop-over-mpi", LOST, r"^  rank 1 on \S+ does not answer: it is stopped", once="error:")
    expect("stop-first-over-mpi", LOST, r"error: waited .* in all_reduce .*; rank 0 on \S+ does not answer: it is stopped")
    # A launcher that does not see the death, as srun by default does not act on it: the others find out by themselves.
    expect("kill-over-mpi", LOST, r"the process of rank 1 on \S+ has ended during all_reduce", launch=[*launch, *UNSEEN],
           once="error:")
    expect("kill", LOST, "the process of rank 1 has ended while rank", launch=[*launch, *UNSEEN], once="error:")

    # UCX, under MPICH, aborts the rank that reads the dead one's memory. The status is the rank's: the launcher's is that of the shells, or of killing them.
    pair, told = [mpiexec, "-n", "2", *TELLING], [*launch, *TELLING]
    noticed = "on " if runs.OPEN_MPI else "has ended, and MPI gave up because of it"
    for words in (f"rank 0: error: the process of rank 1 {noticed}", "a rank ended with 76"):
        expect("kill-sending-over-mpi", ANY, "", launch=pair, has=words, ranks=2, reported=LOST)

    # Ranks that abort: a fault of their own in each is nobody else's; of the ended, the one that was lost is named, not one that MPI gave up
    # in over it; a signal from outside ends the rank at once, whoever was lost. The shells keep the launcher out of it.
    lost = "error: the process of rank 2 has ended, and MPI gave up because of it"
    expect("abort-everywhere", ANY, "", launch=pair, ranks=2, times={"has ended": 0, "a rank ended with 134": 2})
    expect("abort-beside-kill", ANY, "", launch=told, times={lost: 1, "has ended": 1, "a rank ended with 76": 2, "a rank ended with 137": 1}, reported=LOST)
    expect("abort-from-outside-beside-kill", ANY, "", launch=told, times={"has ended": 0, "a rank ended with 134": 2, "a rank ended with 137": 1})

    # MPICH 4.0.2 hangs in MPI_Finalize in about every other run over TCP: the runs end all the same, with their own status.
    over_tcp = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"} if runs.OPEN_MPI else {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self"}
    for _ in range(3):
        expect("none", 0, "", environment=over_tcp)
        expect("status", 4, "", environment=over_tcp)
    # What MPI is told of nodes does not count: they share one here.
    expect("throw", 3, r"rank 1: error: train.h5: token 70000", environment=over_tcp, once="error:")

    # Ranks on nodes of their own, by their names: the culprit and its host are named, once for all nodes. Open MPI's daemon knows them to be on one.
    if not runs.OPEN_MPI and subprocess.run(["unshare", "--uts", "true"], stderr=subprocess.DEVNULL).returncode == 0:
        nodes = [*launch, "unshare", "--uts", "sh", "-c", 'hostname "n$%s"; exec "$0" "$@"' % runs.RANK]
        expect("none", 0, "", launch=nodes, environment=over_tcp)
        expect("throw", 3, "rank 1 on n1: error: train.h5: token 70000", launch=nodes, environment=over_tcp, once="error:")
        expect("stall", LOST, "^  rank 1 on n1 runs no task", launch=nodes, environment=over_tcp, once="error:",
               has="; ranks 0 on n0, 2 on n2 wait there, for:")
        expect("stop", LOST, "^  rank 1 on n1 does not answer: it is stopped", launch=nodes, environment=over_tcp, once="error:")
        expect("stop-first", LOST, "rank 0 on n0 does not answer: it is stopped", launch=nodes, environment=over_tcp)
        # The limit of a collective is as long as the bound of this test: only the watch can tell.
        expect("kill", LOST, "the process of rank 1 on n1 has ended during all_reduce", launch=[*nodes, *UNSEEN], environment=over_tcp, once="error:")

    # An MPI that cannot start has words of its own, which are not about this machine; its launcher may end the ranks with them.
    few = [mpiexec, "-n", "2", "sh", "-c", 'ulimit -n 18; exec "$0" "$@"']
    if not runs.OPEN_MPI:
        good &= check("few descriptors", [*few, program, "none"], ANY, "", ranks=0, reported=ANY,
                      has="This process may open 18 files and has ")
    little = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$0" "$@"']
    if not runs.OPEN_MPI and subprocess.run([*little, "true"], stderr=subprocess.DEVNULL).returncode == 0:
        good &= check("little shared memory", [*little, mpiexec, "-n", "2", program, "none"], ANY, "", ranks=0, reported=ANY,
                      has="/dev/shm has 64.00 KiB free, and MPI takes about 8.00 MiB of it for each rank of the node: enlarge it")

    good &= starts(launch)
    if not runs.OPEN_MPI:
        good &= last_words()

    for variable in ("SLURM_NTASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE"):
        good &= check(f"one process and {variable}=4", [program, "none"], 6, "srun --mpi=pmi2", ranks=0, environment={variable: "4"})
    good &= check("one process", [program, "none"], 0, "", ranks=1)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
