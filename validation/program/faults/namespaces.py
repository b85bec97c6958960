#!/usr/bin/env python3
"""Ranks in PID namespaces of their own, as where a container is started for each: the number of a process is that of another one there, and
/proc/PID/fd/N is another file. No file is touched, and the run has the bits of one without namespaces."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

KEYS = {"run__reproducible": True, "run__threads": 1, "batch__global": 4, "run__steps": 3, "evaluate__every": 2}
# Rank 1 has the two files open under so many numbers that those of rank 0's memory are among them.
HOLD = f"""
import os, sys
if os.environ["{runs.RANK}"] == "1":
    for number in range(96):
        os.set_inheritable(os.open(sys.argv[1 + number % 2], os.O_RDWR), True)
os.execvp(sys.argv[3], sys.argv[3:])
"""
OWN = ["unshare", "--pid", "--fork", "--mount-proc"]
# MPICH's transports read /proc themselves, and refuse to start where it is another namespace's: over TCP they do not ask.
OVER_TCP = {"UCX_TLS": "self,tcp"}
if runs.OPEN_MPI:  # it would copy between processes by their numbers
    os.environ["OMPI_MCA_btl_vader_single_copy_mechanism"] = "none"
check = runs.Checks()


def allowed(command):
    return subprocess.run([*command, "true"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def contents(paths):
    found = []
    for path in paths:
        with open(path, "rb") as file:
            found.append(file.read())
    return found


def main():
    try:
        if not allowed(OWN):
            print("SKIP this machine does not allow PID namespaces (a container without CAP_SYS_ADMIN?)")
            return 77
    except FileNotFoundError:
        print("SKIP unshare is not installed")
        return 77
    with runs.Folder() as folder:
        validation, other = os.path.join(folder.path, "val.bin"), os.path.join(folder.path, "other.bin")
        with open(folder.data, "rb") as tokens, open(validation, "wb") as out:
            out.write(tokens.read())
        with open(other, "wb") as out:
            out.write(bytes(range(256)) * (1 << 14))  # larger than all memory that the ranks share
        # The tokens too: what is mapped of them would be written.
        with open(folder.data, "ab") as tokens, open(validation, "rb") as more:
            tokens.write(more.read() * 100)
        keys = {**KEYS, "data__validation": validation}
        folder.train("plain", 2, **keys)
        for name, around, each, environment, apart in (
                ("own", [], OWN, {}, True),
                ("own-without-proc", [], OWN[:-1], OVER_TCP, True),
                ("together-without-proc", OWN[:-1], [], OVER_TCP, True),
                ("held", [], [], {}, False)):
            if runs.OPEN_MPI and environment:
                continue
            before = contents([folder.data, validation, other])
            mpiexec, count, ranks, *command = folder.command(name, 2, **keys)
            done = subprocess.run([*around, mpiexec, count, ranks, *each, sys.executable, "-c", HOLD, folder.data, other, *command], stdin=subprocess.DEVNULL,
                                  capture_output=True, text=True, timeout=runs.HANG_SECONDS, env={**os.environ, **environment})
            output = done.stdout + done.stderr
            check(f"{name}: status {done.returncode}", done.returncode == 0, output)
            check(f"{name}: no file was touched", contents([folder.data, validation, other]) == before)
            if done.returncode == 0:
                check(f"{name}: the bits of a run without namespaces",
                      runs.same(name, folder.losses(name), folder.losses("plain")) and runs.same(name, folder.hashes(name), folder.hashes("plain")))
                check(f"{name}: {'says' if apart else 'does not say'} that memory is not shared", ("staging window" in output) == apart, output)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
