"""Plays command lines of tessera, one after another, in a launch of ranks that stays: tessera_play (validation/program/play). Each costs what it
computes, not the start of MPI and of its libraries.

    import players
    done = players.play(program, ["train", deck, "run.steps=3"], ranks=2)    # program: the path of tessera, beside which tessera_play stands
    done.returncode, done.stdout, done.stderr                                # as of subprocess.run; for ranks > 1 as of mpiexec
    done.seconds, done.processor_seconds                                     # of all its ranks; None where it ended the launch

The environment and the working folder are those that this process has at the call. What is read at a process's start (OMP_*, LD_*, MPICH_* ...) makes
another launch. A command that ends its process ends the launch, which is said, and the next one gets another. Launches end with this process, and
when somebody calls end(). Not for what needs a process of its own: signals, kills, preloaded libraries, the process's memory. Standard library only."""
import atexit
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SECONDS = 600  # a bound against hangs
FEWEST = 4     # ranks of a launch; one that is asked for more is followed by a larger one
# What libraries and the loader read once.
AT_START = ("OMP_", "GOMP_", "KMP_", "KOKKOS_", "LD_", "GLIBC_", "MALLOC_", "MPICH_", "MPIR_", "MPIEXEC_", "HYDRA_", "PMI", "UCX_", "OMPI_", "FI_", "DNNL_", "ONEDNN_",
            "HDF5_", "HWLOC_", "CUDA_", "NVIDIA_", "TESSERA_EMULATED", "ASAN_", "UBSAN_", "LSAN_", "TSAN_", "FAULT_", "SLURM_", "MALLOCFENCE")


def beside(program):
    """tessera_play of that program's build; None where there is none, as in a bundle, or where TESSERA_OWN_PROCESSES says that each command shall have a
    process of its own."""
    play = os.path.join(os.path.dirname(os.path.abspath(program)), "tessera_play")
    return play if os.path.exists(play) and not os.environ.get("TESSERA_OWN_PROCESSES") else None


class Done(subprocess.CompletedProcess):
    """What a command came to."""

    def __init__(self, arguments, status, out, err, seconds=None, processor_seconds=None):
        super().__init__(arguments, status, out, err)
        self.seconds, self.processor_seconds = seconds, processor_seconds


def descendants(pid):
    found = []
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as text:
            for child in text.read().split():
                found += [int(child)] + descendants(int(child))
    except OSError:
        pass  # gone in the meantime
    return found


class Launch:
    """tessera_play on so many ranks."""

    def __init__(self, play, ranks, mpiexec):
        self.ranks, self.environment, self.items = ranks, dict(os.environ), 0
        self.folder = tempfile.mkdtemp(prefix="tessera-play-")
        self.words = open(os.path.join(self.folder, "launch.err"), "w+b")
        self.process = subprocess.Popen([mpiexec, "-n", str(ranks), play], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.words, start_new_session=True)
        self.rest, self.answered, self.ended = b"", None, False  # ended: by an item, which is said

    def fits(self, ranks):
        """Whether it can play a command of so many ranks with the environment of now."""
        changed = (name for name in {*self.environment, *os.environ} if self.environment.get(name) != os.environ.get(name))
        return ranks <= self.ranks and self.process.poll() is None and not any(name.startswith(AT_START) for name in changed)

    def play(self, arguments, ranks):
        self.items += 1
        out, err = (os.path.join(self.folder, f"{self.items}.{kind}") for kind in ("out", "err"))
        for path in (out, err):
            open(path, "w").close()
        changed = {name: os.environ.get(name) for name in {*self.environment, *os.environ} if self.environment.get(name) != os.environ.get(name)}
        request = {"ranks": ranks, "ranks_per_node": None, "argv": arguments, "out": out, "err": err, "environment": changed, "cwd": os.getcwd()}
        said = []
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            answer = self.answer(said)
        except BrokenPipeError:
            answer = None
        if answer is not None and "error" in answer:
            sys.exit(f"FAIL tessera_play refuses {request}: {answer['error']}")
        texts = []
        for path in (out, err):
            with open(path, errors="replace") as text:
                texts.append(text.read())
            os.remove(path)
        if answer is not None:
            self.answered = answer
            return Done(arguments, answer["status"], *texts, answer["seconds"], answer["processor_seconds"])
        status = self.process.wait(SECONDS)
        self.ended = True
        self.words.seek(0)
        words = self.words.read().decode(errors="replace")
        print(f"     the launch of {self.ranks} ranks ended with status {status} in {' '.join(arguments[:2])}; another one is started for what comes", flush=True)
        return Done(arguments, status, texts[0] + "".join(said), texts[1] + words)

    def answer(self, said):
        """The next line in JSON; None where the launch has ended. Other lines are the launcher's."""
        deadline = time.monotonic() + SECONDS
        while True:
            line, found, self.rest = self.rest.partition(b"\n") if b"\n" in self.rest else (b"", b"", self.rest)
            if found:
                if line.startswith(b"{"):
                    return json.loads(line)
                said.append(line.decode(errors="replace") + "\n")
                continue
            if not select.select([self.process.stdout], [], [], max(0, deadline - time.monotonic()))[0]:
                self.kill()
                self.ended = True
                raise subprocess.TimeoutExpired(self.process.args, SECONDS)
            piece = os.read(self.process.stdout.fileno(), 65536)
            if not piece:
                return None
            self.rest += piece

    def kill(self):
        for pid in reversed([self.process.pid] + descendants(self.process.pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def end(self):
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()
        self.words.seek(0)
        words = self.words.read().decode(errors="replace")
        self.process.stdout.close()
        self.words.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        return "" if self.ended or self.process.returncode == 0 else f"FAIL a launch of {self.ranks} ranks left with status {self.process.returncode}\n{words}"


launches = {}  # by program


def play(program, arguments, ranks=1, mpiexec="mpiexec"):
    """What `tessera ARGUMENTS` on so many ranks came to."""
    launch = launches.get(program)
    if launch is None or not launch.fits(ranks):
        size = max(FEWEST, ranks)
        if launch is not None:
            size = max(size, launch.ranks)
            if wrong := launches.pop(program).end():
                sys.exit(wrong)
        launch = launches[program] = Launch(beside(program), size, mpiexec)
    return launch.play([str(argument) for argument in arguments], ranks)


def end():
    """Ends all launches; what is wrong with an end, which a sanitizer may say."""
    return "".join(launches.popitem()[1].end() for _ in range(len(launches)))


def end_with_process():
    if wrong := end():
        print(wrong, flush=True)
        os._exit(1)


atexit.register(end_with_process)
