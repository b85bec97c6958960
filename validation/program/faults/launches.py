#!/usr/bin/env python3
"""Launches whose ranks do not fit together: another program on a rank, other instructions, another deck, and ranks that never come. None of them may
train; each says which rank of which host it is. And what the environment makes of threads."""
import json
import os
import shutil
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

ENVIRONMENT, USAGE, LOST, NO_ROOM = 6, 2, 76, 5
HOST = socket.gethostname()
SANITIZED = "sanitized" in sys.argv[1:]  # whose allocator takes all addresses that there are
check = runs.Checks()


def launch(*parts):
    """One rank a part, each (environment, command); the launch is over when all are."""
    command = [runs.MPIEXEC]
    for number, (environment, rank) in enumerate(parts):
        command += [":"] * (number > 0) + ["-n", "1"] + ["env", *(f"{name}={value}" for name, value in environment.items())] * bool(environment) + rank
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)


def refused(what, folder, name, done, status, words):
    output = done.stdout + done.stderr
    check(f"{what}: status {done.returncode}", done.returncode == status, output)
    for word in words:
        check(f"{what}: says {word!r}", word in output, output)
    check(f"{what}: says it once", output.count("error:") == 1, output)
    check(f"{what}: leaves no folder", not os.path.exists(folder.run(name)), output)


def other_program(folder):
    other = os.path.join(folder.path, "tessera")
    shutil.copy(runs.TESSERA, other)
    with open(other, "ab") as file:
        file.write(b"\0")  # the loader does not read it
    mine = folder.command("other", 1)
    done = launch(({}, mine), ({}, [other] + mine[1:]))
    refused("another program on rank 1", folder, "other", done, ENVIRONMENT, [f"rank 1 on {HOST}: program file ", f"the same program as rank 0 on {HOST}"])


def other_instructions(folder):
    def ranks(name, **keys):
        return [({"ONEDNN_MAX_CPU_ISA": isa}, folder.command(name, 1, **{"run__steps": 2, **keys})) for isa in ("SSE41", "AVX2")]

    done = launch(*ranks("instructions"))
    refused("other instructions on rank 1", folder, "instructions", done, ENVIRONMENT,
            [f"rank 1 on {HOST}: oneDNN instructions AVX2, not SSE41", "topology.mixed_processors"])
    done = launch(*ranks("allowed", topology__mixed_processors=True))
    check("other instructions train where the deck allows it", done.returncode == 0, done.stderr)
    done = launch(*ranks("same-bits", topology__mixed_processors=True, run__reproducible=True))
    refused("other instructions and the same bits", folder, "same-bits", done, USAGE, ["topology.mixed_processors", "ONEDNN_MAX_CPU_ISA"])


def other_deck(folder):
    done = launch(({}, folder.command("deck", 1)), ({}, folder.command("deck", 1, run__seed=7, optimizer__beta2=0.5)))
    refused("another deck on rank 1", folder, "deck", done, ENVIRONMENT,
            [f"the deck of rank 1 on {HOST}", "run.seed = 1, here 7", "optimizer.beta2", "here 0.5"])


def other_folder(folder):
    """A relative run.output_dir, and ranks that were started in folders of their own: not even the folder is left, wherever the last rank was."""
    places = [os.path.join(folder.path, name) for name in ("here", "there")]
    for place in places:
        os.mkdir(place)
    train = [runs.TESSERA, "train", folder.deck, "run.output_dir=runs/x", "run.steps=2", "checkpoint.every=1"]
    for what, there in (("no folder", []), ("another start's folder", ["runs", "runs/x"])):
        for name in there:
            os.mkdir(os.path.join(places[1], name))
        if there:
            with open(os.path.join(places[1], "runs/x/run.lock"), "w") as lock:
                lock.write("process 1 on elsewhere\nclaim 0\n")
        command = [runs.MPIEXEC, "-n", "1", "-wdir", places[0], *train, ":", "-n", "1", "-wdir", places[1], *train]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=runs.HANG_SECONDS)
        here, sees = os.path.join(places[0], "runs/x"), os.path.join(places[1], "runs/x")
        refused(f"a rank that sees {what}", folder, "other", done, ENVIRONMENT,
                [f"rank 1 on {HOST} does not see the run's folder", here, f"is {sees}, where there is {'another' if there else 'no'} run.lock",
                 "run.output_dir as an absolute path"])
        check(f"a rank that sees {what}: nothing is left or changed", os.listdir(places[0]) == [] and
              [at for at, _, _ in os.walk(places[1])] == [places[1]] + [os.path.join(places[1], name) for name in there])


def before_mpi(folder):
    """A rank that ends before MPI could say which it is. Were the others left to themselves, they would wait for minutes."""
    if SANITIZED:
        return
    train = folder.command("early", 1)
    done = launch(({}, train), ({}, ["sh", "-c", 'ulimit -v 300000; exec "$0" "$@"', *train]))
    refused("rank 1 ends before MPI starts", folder, "early", done, NO_ROOM, [f"rank 1 on {HOST}: error: MPI with its threads takes"])


def another_program(folder):
    """A rank that never speaks MPI: the deck says how long the others wait for it."""
    report = os.path.join(folder.path, "status")
    done = launch(({"TESSERA_STATUS_FILE": report}, folder.command("never", 1, topology__start_timeout="4 s")), ({}, ["sleep", "300"]))
    output = done.stdout + done.stderr
    with open(report) as lines:
        said = lines.readline().strip()
    check(f"a rank that is another program: {said}", said == f"status {LOST}", output)
    # Open MPI's launcher may report the signal by which it ends the other program.
    check(f"a rank that is another program: the launcher's status {done.returncode}", done.returncode == LOST or runs.OPEN_MPI and done.returncode, output)
    check("a rank that is another program: is named", f"of 2 ranks 1 has not come; rank 0 on {HOST} is here" in output, output)
    check("a rank that is another program: who waited leaves nothing", not [n for n in os.listdir(folder.path) if n.startswith(".tessera-start")])


def carried(folder):
    """What --version prints stands in the metrics and in the checkpoint."""
    version = subprocess.run([runs.TESSERA, "--version"], capture_output=True, text=True, check=True).stdout
    digest = next(line.split()[-1] for line in version.splitlines() if line.startswith("program file "))
    commit = next(line.split()[-1] for line in version.splitlines() if line.startswith("commit "))
    folder.train("carried", 2, own_process=True, run__steps=2)  # tessera_play is another program file
    with open(os.path.join(folder.run("carried"), "metrics.jsonl")) as lines:
        start = json.loads(lines.readline())
    check("metrics begin with the program that wrote them", (start["step"], start["ranks"], start["program_file"], start["commit"]) == (0, 2, digest, commit), str(start))
    program = runs.directory(os.path.join(folder.latest("carried"), "checkpoint.h5"))["program"]
    check("a checkpoint says which program wrote it", f"program file {digest}" in program and f"commit {commit}" in program, program)


def one_process(folder):
    """Commands of one process refuse to run several times at once."""
    for words in (["evaluate", "X", "--data", "Y"], ["generate", "X", "--prompt", "a"], ["import", "X", "Y"], ["tokenize", "X", "Y"]):
        done = subprocess.run([runs.MPIEXEC, "-n", "2", runs.TESSERA, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=folder.path)
        check(f"{words[0]} refuses two processes", done.returncode == 2 and f"tessera {words[0]} works in one process, but the launcher started 2" in done.stderr + done.stdout,
              done.stderr)


def bound_by_openmp(folder):
    """Variables that would bind the threads of all ranks to the node's first cores: ranks that nobody has bound leave them, and lie apart."""
    name, variables = "openmp", {"OMP_PROC_BIND": "close", "OMP_PLACES": "cores"}
    before = {key: os.environ.get(key) for key in variables}
    os.environ.update(variables)
    run = folder.start(name, 2, **runs.ENDLESS)
    for key, value in before.items():
        os.environ.pop(key) if value is None else os.environ.update({key: value})
    run.wait_for_step(1)
    cores = [os.sched_getaffinity(pid) for pid in run.ranks()]
    run.kill()
    output = run.output()
    free = len(os.sched_getaffinity(0)) == os.cpu_count()  # else the launch itself is bound, and its ranks keep the variables
    check("OpenMP's places are left, and that is said", ("OMP_PROC_BIND and OMP_PLACES of the environment are not used" in output) == free, output)
    check("ranks lie apart", not free or os.cpu_count() < 2 or not cores[0] & cores[1], f"{cores}\n{output}")


def short_waits():
    """Threads of OpenMP that have nothing to do sleep soon, unless their environment says how long they look again."""
    def spins(**variables):
        environment = {"PATH": os.environ["PATH"], "SHLVL": "1", "OMP_DISPLAY_ENV": "verbose", **variables}
        output = subprocess.run([runs.TESSERA, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment).stderr
        return [line.split("'")[1] for line in output.splitlines() if "GOMP_SPINCOUNT" in line]

    check("threads that wait sleep soon", spins() == ["1000"], str(spins()))
    check("as long as a user says", spins(GOMP_SPINCOUNT="7") == ["7"], str(spins(GOMP_SPINCOUNT="7")))
    check("and as a user's policy says", spins(OMP_WAIT_POLICY="passive") == ["0"], str(spins(OMP_WAIT_POLICY="passive")))


def main():
    short_waits()
    with runs.Folder() as folder:
        other_program(folder)
        other_instructions(folder)
        other_deck(folder)
        other_folder(folder)
        before_mpi(folder)
        another_program(folder)
        carried(folder)
        one_process(folder)
        bound_by_openmp(folder)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
