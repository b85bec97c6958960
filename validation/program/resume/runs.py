"""Starts tessera on small decks and reads what it left: shared by the tests of bits, resume and faults. Standard library only.

Folder.train, Folder.plan and tessera() play their commands in one launch of ranks that stays (players.py); what needs a process of its own says own_process=True, and
Folder.start and Folder.command are always of one. From elsewhere:

    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))   # the way to this folder
    import runs                                                                                   # TESSERA in the environment names the program
    with runs.Folder() as folder:
        done = folder.train("name", ranks=2, zero__stage=3, run__steps=3)                         # ends this process where the status is another than expect
        done = runs.tessera("train", DECK, "run.steps=3", ranks=4)                                # any status; done.returncode, .stdout, .stderr
        folder.losses("name"), folder.hashes("name")
"""
import hashlib
import itertools
import json
import math
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import time

import players

TESSERA = os.environ.get("TESSERA", "build/host/tessera")

# Tests that are started by nohup, or behind a shell's &, would start programs that these signals cannot stop.
for _number, _usual in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, _usual)


def launcher():
    """mpiexec of the MPI that tessera was built with: CTest names it, and so does the build folder."""
    if "MPIEXEC" in os.environ:
        return os.environ["MPIEXEC"]
    try:
        with open(os.path.join(os.path.dirname(TESSERA), "CMakeCache.txt")) as cache:
            return next(line.split("=", 1)[1].strip() for line in cache if line.startswith("MPIEXEC_EXECUTABLE:"))
    except (OSError, StopIteration):
        return "mpiexec"


def is_open_mpi(mpiexec):
    try:
        return "Open" in subprocess.run([mpiexec, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
    except OSError:
        return False


MPIEXEC = launcher()
OPEN_MPI = is_open_mpi(MPIEXEC)  # signals to its mpiexec, and the variables that it gives to ranks, are its own
RANK, RANKS = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE") if OPEN_MPI else ("PMI_RANK", "PMI_SIZE")


def own_lines(output):
    """The lines of a run's output without those of Open MPI's launcher, which come last: blocks between lines of dashes, and lines of its daemons."""
    output = re.sub(r"^-{20,}\n.*?(^-{20,}\n|\Z)", "", output, flags=re.M | re.S)
    return [line for line in output.splitlines() if line.strip() and not re.search("ORTE_ERROR_LOG|PMIX ERROR", line)]


MODEL = {
    "model.layers": 2, "model.width": 32, "model.heads": 4, "model.kv_heads": 2, "model.ff_width": 48, "model.vocab": 211,
    "batch.global": 60, "batch.micro": 1, "batch.sequence_length": 12,
    "optimizer.learning_rate": 3e-3, "learning_rate.warmup_steps": 2, "evaluate.every": 0, "checkpoint.every": 0, "run.log_every": 1000,
    "run.device": "host",
}


# Keys of runs on GPUs, which ranks share, and which may be emulated: these take as long as there are launches, whatever their sizes.
ON_GPUS = {"run__device": "cuda", "topology__share_gpu": True, "kernels__gemm_search": False, "model__heads": 2, "model__kv_heads": 1, "batch__global": 3}

# A bound against hangs, for what takes well under a second: no test passes or fails by how fast the machine is.
HANG_SECONDS = 600
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  # after which a run saves and leaves
# More steps than any run does before a test stops it. The learning rate must not depend on them: ENDLESS has both keys.
ENDLESS = {"run__steps": 10**9, "learning_rate__schedule": "constant"}


def overrides(keys):
    """The keys of a call as they stand on a command line."""
    if "nvme" in keys.values() and "zero__offload_optimizer__nvme_path" not in keys:
        keys = {**keys, "zero__offload_optimizer__nvme_path": tempfile.gettempdir()}
    return [f"{k.replace('__', '.')}={str(v).lower() if isinstance(v, bool) else v}" for k, v in keys.items()]


def human_bytes(count):
    """As the program writes them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.2f} {unit}"
        count /= 1024


def tessera(*arguments, ranks=1, own_process=False):
    """What a command line of the program on so many ranks came to: a subprocess.CompletedProcess."""
    if not own_process and players.beside(TESSERA):
        return players.play(TESSERA, arguments, ranks, MPIEXEC)
    command = [TESSERA, *arguments] if ranks == 1 else [MPIEXEC, "-n", str(ranks), TESSERA, *arguments]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=HANG_SECONDS)


class Folder:
    """A temporary folder with token data; removed at the end."""

    def __enter__(self):
        self._temporary = tempfile.TemporaryDirectory(prefix="tessera-test-")
        self.path = self._temporary.name
        os.environ["XDG_CACHE_HOME"] = os.path.join(self.path, "cache")  # not the user's
        self.data = os.path.join(self.path, "train.bin")
        state = 12345
        tokens = []
        for _ in range(20000):
            state = (state * 1103515245 + 12345) % 2**31
            tokens.append((state >> 8) % 211 if len(tokens) % 3 else len(tokens) % 211)
        with open(self.data, "wb") as out:
            out.write(struct.pack(f"<{len(tokens)}H", *tokens))
        self.deck = os.path.join(self.path, "deck.toml")
        sections = {}
        for key, value in MODEL.items():
            section, name = key.split(".")
            sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")
        sections.setdefault("data", []).append(f'train = "{self.data}"')
        sections.setdefault("run", []).append("steps = 20")
        with open(self.deck, "w") as out:
            for section, lines in sections.items():
                out.write(f"[{section}]\n" + "\n".join(lines) + "\n")
        return self

    def __exit__(self, *unused):
        self._temporary.cleanup()

    def arguments(self, name, **keys):
        return ["train", self.deck, f"run.output_dir={self.run(name)}"] + overrides(keys)

    def command(self, name, ranks, **keys):
        run = [TESSERA] + self.arguments(name, **keys)
        return run if ranks == 1 else [MPIEXEC, "-n", str(ranks)] + run

    def plan(self, ranks, *options, **keys):
        """What `tessera plan --json` says of such a run."""
        done = tessera("plan", self.deck, "--ranks", str(ranks), "--json", *options, *overrides(keys))
        if done.returncode != 0:
            sys.exit(f"FAIL plan: status {done.returncode}\n{done.stderr}")
        return json.loads(done.stdout)

    def run(self, name):
        return os.path.join(self.path, name)

    def latest(self, name):
        return os.path.join(self.run(name), "checkpoints", "latest")

    def train(self, name, ranks, expect=0, own_process=False, **keys):
        done = tessera(*self.arguments(name, **keys), ranks=ranks, own_process=own_process)
        if done.returncode != expect:
            sys.exit(f"{name}: status {done.returncode}, expected {expect}\n{done.stderr[-20000:]}")
        return done

    def losses(self, name):
        """Loss of each step, as written; a step that was run twice counts once, by its last line."""
        losses = {}
        with open(os.path.join(self.run(name), "metrics.jsonl")) as lines:
            for line in lines:
                row = json.loads(line)
                if "loss" in row:
                    losses[row["step"]] = (row["loss"], row["grad_norm"])
        return losses

    def metrics(self, name):
        """All rows that the run wrote."""
        with open(os.path.join(self.run(name), "metrics.jsonl")) as lines:
            return [json.loads(line) for line in lines]

    def hashes(self, name):
        """(group, tensor) -> digest of its values, for weights and both moments."""
        return state_digests(self.latest(name))

    def start(self, name, ranks, **keys):
        return Running(self.command(name, ranks, **keys), self.run(name), os.path.join(self.path, name + ".log"))


class Checks:
    """check(what, condition, output) prints a line for each condition, and the end of the output where it fails."""

    def __init__(self):
        self.good = True

    def __call__(self, what, condition, output=""):
        print(f"{'ok  ' if condition else 'FAIL'} {what}", flush=True)
        if not condition:
            print("\n".join("     | " + line for line in output.splitlines()[-60:]))
            self.good = False


def runs_unless(folder, missing, name, **keys):
    """Whether a short run on the GPU succeeds; it may fail only with these words."""
    run = tessera(*folder.arguments(name, run__device="cuda", run__steps=2, batch__global=1, **keys))
    if run.returncode and missing not in run.stderr:
        sys.exit(f"status {run.returncode}\n{run.stderr[-4000:]}")
    return run.returncode == 0


def has_gpu(folder):
    """Whether this machine has a GPU (or an emulated one) that tessera sees."""
    return runs_unless(folder, "no GPU", "has-gpu")


def has_cudnn(folder):
    """Whether it has cuDNN as well."""
    return runs_unless(folder, "libcudnn.so.9 was not found", "has-cudnn", precision__compute="bf16", kernels__attention="cudnn")


def children(pid):
    """Every living process below `pid`, nearest first."""
    found = []
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as text:
            for child in text.read().split():
                found += [int(child)] + children(int(child))
    except OSError:
        pass  # gone in the meantime
    return found


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def rank_of(pid):
    """As its launcher has told it; 0 of a process without one."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environment:
            told = dict(entry.split(b"=", 1) for entry in environment.read().split(b"\0") if b"=" in entry)
    except OSError:
        return 0
    return next((int(told[name]) for name in (b"PMI_RANK", b"PMIX_RANK", b"OMPI_COMM_WORLD_RANK", b"SLURM_PROCID") if told.get(name, b"").isdigit()), 0)


class Running:
    """A run under way, which a test signals and kills. Its output goes to a file, so that nobody has to read along."""

    def __init__(self, command, folder, log):
        self.folder, self.log, self.begin = folder, log, time.time()
        with open(log, "wb") as out:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)

    def everybody(self):
        """The launcher, its helpers and the ranks."""
        return [self.process.pid] + children(self.process.pid)

    def ranks(self):
        """Their process ids, in the order of ranks: ids begin anew at some number, so that a later process may have a smaller one."""
        # In a bundle bin/tessera is a shell script, which becomes the program in libexec.
        programs = [TESSERA, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(TESSERA))), "libexec", "tessera")]

        def is_rank(pid):
            try:
                return any(os.path.samefile(f"/proc/{pid}/exe", program) for program in programs if os.path.exists(program))
            except OSError:
                return False
        return sorted((pid for pid in self.everybody() if is_rank(pid)), key=rank_of)

    def signal_ranks(self, number, which=None):
        pids = self.ranks()
        for pid in pids if which is None else [pids[which]]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass

    def kill(self):
        """SIGKILL to every process, ranks first and all in the same instant; returns when all are gone and whether the run was still on."""
        going = self.process.poll() is None
        pids = self.everybody()
        for pid in reversed(pids):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait(HANG_SECONDS)
        wait_until_gone(pids)
        return going

    def wait(self):
        """Exit status."""
        try:
            return self.process.wait(HANG_SECONDS)
        except subprocess.TimeoutExpired:
            print(self.output())
            self.kill()
            sys.exit(f"FAIL {self.folder}: still running after {HANG_SECONDS} s")

    def output(self):
        with open(self.log, errors="replace") as text:
            return text.read()

    def steps_done(self):
        """The step of the last whole line of metrics.jsonl, 0 before there is one, and while a start cuts off the rows that it will write again."""
        try:
            with open(os.path.join(self.folder, "metrics.jsonl"), "rb") as lines:
                whole = lines.read().rpartition(b"\n")[0]
            return json.loads(whole.rpartition(b"\n")[2])["step"] if whole else 0
        except (OSError, ValueError):
            return 0

    def ended(self):
        return self.process.poll() is not None

    def wait_for_step(self, step):
        """Returns when that step is done. A run that has ended before is a fault of the test: what it meets alive must be ENDLESS."""
        wait_until(lambda: self.steps_done() >= step or self.ended(), f"step {step} of {self.folder}")
        if self.ended():
            sys.exit(f"FAIL {self.folder} ended with status {self.process.returncode} before the test stopped it\n{self.output()}")


def wait_until(condition, what, pause=0.001):
    deadline = time.monotonic() + HANG_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"FAIL waited {HANG_SECONDS} s for {what}")
        time.sleep(pause)


def wait_until_gone(pids):
    """What the launcher kills it does not always see die."""
    wait_until(lambda: not any(alive(pid) for pid in pids), "processes to be gone", pause=0.01)


class Reference:
    """Runs that nobody disturbs, of one rank, from the first step to the one that is asked for: their losses and state are those that a run which
    was stopped and went on must come to. With a schedule that does not depend on run.steps a run of N steps is the first N of any longer one."""

    def __init__(self, folder, **keys):
        self.folder, self.keys, self.known = folder, keys, {}

    def at(self, step):
        """(losses of all steps up to this one, digests of the state after it)"""
        if step not in self.known:
            name = f"reference-{step}"
            self.folder.train(name, 1, **{**self.keys, "zero__stage": 0, "checkpoint__every": 0, "run__steps": step})
            self.known[step] = self.folder.losses(name), self.folder.hashes(name)
        return self.known[step]


def directory(path):
    """The first line of a checkpoint file says how long the directory behind it is; the directory is JSON."""
    with open(path, "rb") as file:
        head = file.read(160).decode()
        return json.loads(file.read(int(head.split("directory ")[1].split(",")[0])))


def read_state(folder):
    """(group, tensor) -> (shape, the bytes of its fp32 values), put together from the shard files without any of the program's code."""
    layout = directory(os.path.join(folder, "checkpoint.h5"))["layout"]
    slices = {}  # (group, unit) -> the bytes of each slice by where it begins
    for number in range(1 + max(layout.get("files", [layout["shards"] - 1]))):
        path = os.path.join(folder, f"shard-{number:05d}.h5")
        with open(path, "rb") as file:
            for part in directory(path)["slices"]:
                file.seek(part["data_at"])
                data = file.read(4 * (part["end"] - part["begin"]))
                slices.setdefault((part["group"], part["unit"]), []).append((part["begin"], data))
    units = {key: b"".join(data for _, data in sorted(parts)) for key, parts in slices.items()}
    state = {}
    in_groups = {unit["name"]: unit.get("groups", layout["groups"]) for unit in layout["units"]}
    for group in layout["groups"]:
        for tensor in layout["tensors"]:
            if group not in in_groups[tensor.get("pieces", [tensor])[0]["unit"]]:
                continue
            values = bytearray(4 * math.prod(tensor["shape"]))
            whole = {"start": [0] * len(tensor["shape"]), "count": tensor["shape"]}
            filled = 0
            for piece in tensor.get("pieces", [{**tensor, **whole}]):
                data, at = units[group, piece["unit"]], 4 * piece["offset"]
                for begin, length in rows_of_box(tensor["shape"], piece["start"], piece["count"]):
                    values[4 * begin:4 * (begin + length)] = data[at:at + 4 * length]
                    at += 4 * length
                    filled += 4 * length
                if at > len(data):
                    sys.exit(f"FAIL {folder}: {group}/{tensor['name']} is not whole")
            if filled != len(values) or len(values) != 4 * math.prod(tensor["shape"]):
                sys.exit(f"FAIL {folder}: {group}/{tensor['name']} is not whole")
            state[group, tensor["name"]] = (tensor["shape"], bytes(values))
    return state


def rows_of_box(shape, start, count):
    """(first element, elements) of each innermost row of a box in the array's row-major order."""
    if not shape:
        return [(0, 1)]
    if count == shape:
        return [(0, math.prod(shape))]
    strides = [math.prod(shape[d + 1:]) for d in range(len(shape))]
    outer = itertools.product(*(range(s, s + c) for s, c in zip(start[:-1], count[:-1])))
    return [(sum(i * stride for i, stride in zip(index, strides)) + start[-1], count[-1]) for index in outer]


def state_digests(folder):
    return {key: hashlib.sha256(data).hexdigest() for key, (_, data) in read_state(folder).items()}


def same(what, ours, reference):
    """Complains of the first difference; returns whether there was one."""
    if ours == reference:
        return True
    for key in sorted(set(ours) | set(reference)):
        if ours.get(key) != reference.get(key):
            print(f"FAIL {what}: {key}: {ours.get(key)} instead of {reference.get(key)}")
            return False
    return True
