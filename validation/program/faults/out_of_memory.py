#!/usr/bin/env python3
"""Memory that runs out under a run: the ranks are in a control group with a limit, and a stranger in it takes what is left until the kernel kills a rank. The run ends, what can be
said is said, nothing is left behind, and the same command goes on. Needs root and a memory controller; skips without."""
import glob
import os
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

check = runs.Checks()
KEYS = {**runs.ENDLESS, "run__reproducible": True, "run__threads": 1, "batch__global": 4, "checkpoint__every": 2}
LIMIT = 1 << 30
# Takes memory, a page after another.
HOG = """
import mmap
all = []
while True:
    all.append(mmap.mmap(-1, 1 << 20))
    for at in range(0, 1 << 20, 4096):
        all[-1][at] = 1
"""


class Group:
    """A control group of memory, below this process's own: version 1 or 2."""

    def __init__(self):
        with open("/proc/self/cgroup") as lines:
            own = dict(line.strip().split(":", 2)[1:] for line in lines)
        if "memory" in own:
            parent, limit = "/sys/fs/cgroup/memory" + own["memory"], "memory.limit_in_bytes"
            if not os.path.isdir(parent):  # seen from inside a container
                parent = "/sys/fs/cgroup/memory"
        else:
            parent, limit = "/sys/fs/cgroup" + own.get("", "/"), "memory.max"
        self.path = tempfile.mkdtemp(prefix="tessera-", dir=parent)
        self.swap = os.path.join(self.path, "memory.swap.max")
        with open(os.path.join(self.path, limit), "w") as out:
            out.write(str(LIMIT))
        if os.path.exists(self.swap):
            with open(self.swap, "w") as out:
                out.write("0")
        self.procs = os.path.join(self.path, "cgroup.procs")

    def join(self, command):
        """The command, inside."""
        return ["sh", "-c", f'echo $$ >"{self.procs}" && exec "$@"', "sh", *command]

    def remove(self):
        runs.wait_until(lambda: not open(self.procs).read(), "the group to be empty", pause=0.05)
        os.rmdir(self.path)


def shared_memory():
    """Without the copies of neighbours, which runs of other tests keep there meanwhile; the run here makes none."""
    return {path for path in glob.glob("/dev/shm/*") if not os.path.basename(path).startswith("tessera-copies-")}


def main():
    if os.geteuid() != 0:
        print("SKIPPED: a control group needs root")
        sys.exit(77)
    try:
        group = Group()
    except OSError as error:
        print(f"SKIPPED: no control group of memory can be made here: {error}")
        sys.exit(77)
    hog = run = None
    try:
        with runs.Folder() as folder:
            before = shared_memory()
            run = runs.Running(group.join(folder.command("killed", 3, **KEYS)), folder.run("killed"), folder.run("killed") + ".log")
            run.wait_for_step(4)
            ranks = run.ranks()
            with open(f"/proc/{sorted(ranks)[2]}/oom_score_adj", "w") as out:  # whom the kernel kills first
                out.write("1000")
            hog = subprocess.Popen(group.join([sys.executable, "-c", HOG]), stdin=subprocess.DEVNULL)
            status = run.wait()
            hog.kill()
            hog.wait()
            hog = None
            check(f"the run ends: status {status}", status in (9, 76, 137), run.output())
            runs.wait_until_gone(ranks)
            # What is new may be of a test that runs beside this one: it goes when that one's ranks do. What this run has left would stay.
            new = shared_memory() - before
            try:
                runs.wait_until(lambda: not new & shared_memory(), "blocks of other tests to go", pause=0.1)
            except SystemExit:
                pass
            check("nothing is left in shared memory", not new & shared_memory(), str(new & shared_memory()))
            check("a save under way leaves what can be gone on from", os.path.exists(folder.latest("killed")))
            going = int(os.readlink(folder.latest("killed"))[-8:])
            folder.train("killed", 2, **{**KEYS, "run__steps": going + 2})
            losses, state = runs.Reference(folder, **{**KEYS, "run__steps": going + 2}).at(going + 2)
            check("the same command goes on with the undisturbed bits", runs.same("state", folder.hashes("killed"), state) and losses[going + 2] == folder.losses("killed")[going + 2])
    finally:
        if hog:
            hog.send_signal(signal.SIGKILL)
            hog.wait()
        if run and not run.ended():
            run.kill()
        group.remove()
    sys.exit(0 if check.good else 1)


if __name__ == "__main__":
    main()
