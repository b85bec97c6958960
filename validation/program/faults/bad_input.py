#!/usr/bin/env python3
"""Bad input of every kind: refused with the documented exit status and a message that names the thing, and nothing is lost or left
behind: the output folder is not made, or is as it was."""
import hashlib
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

USAGE, DATA, CHECKPOINT, MEMORY, ENVIRONMENT, STORAGE, NUMERICS = 2, 3, 4, 5, 6, 7, 8
COMMON = {"run__steps": 12, "run__reproducible": True, "run__threads": 1, "batch__global": 12}
good = True


def snapshot(path):
    """Everything below a path: names, links, contents; but for the lock, which names the last process that wrote there."""
    found = {}
    for root, folders, files in os.walk(path):
        for name in folders + [file for file in files if file != "run.lock"]:
            at = os.path.join(root, name)
            if os.path.islink(at):
                found[at] = os.readlink(at)
            elif os.path.isfile(at):
                with open(at, "rb") as file:
                    found[at] = hashlib.sha256(file.read()).hexdigest()
            else:
                found[at] = "folder"
    return found if os.path.exists(path) else None


def complain(what, faults, output):
    global good
    print(f"{'FAIL' if faults else 'ok  '} {what}" + "".join(f"\n     {fault}" for fault in faults), flush=True)
    if faults:
        print("\n".join("     | " + line for line in output.splitlines()[-25:]))
        good = False


def refused(what, command, status, words, untouched=(), last=None, limits=None, once="error:"):
    """The command ends with `status`, says all of `words`, and what lies at the paths `untouched` is as before. last: words of the last line."""
    before = [snapshot(path) for path in untouched]
    faults = []
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                              timeout=runs.HANG_SECONDS, preexec_fn=limits)
    except subprocess.TimeoutExpired as expired:
        return complain(what, [f"still running after {runs.HANG_SECONDS} s"], (expired.stdout or b"").decode(errors="replace"))
    if done.returncode != status:
        faults.append(f"status {done.returncode}, expected {status}")
    faults += [f"the message lacks {word!r}" for word in words if word not in done.stdout]
    if once and done.stdout.count(once) != 1:
        faults.append(f"{once!r} stands {done.stdout.count(once)} times, not once")
    lines = runs.own_lines(done.stdout)
    # Open MPI's launcher passes on what several ranks said in any order.
    if last and not any(last in line for line in (lines if runs.OPEN_MPI else lines[-1:])):
        faults.append(f"the last line lacks {last!r}")
    faults += [f"{path} was changed or made" for path, was in zip(untouched, before) if snapshot(path) != was]
    complain(what, faults, done.stdout)
    return done.stdout


def decks(folder):
    out = folder.run("deck")
    with open(folder.deck) as text:
        deck = text.read()

    def with_deck(name, text, what, words, ranks=1, **keys):
        path = os.path.join(folder.path, name)
        with open(path, "w") as file:
            file.write(text)
        command = folder.command("deck", ranks, **keys)
        command[command.index(folder.deck)] = path
        refused(what, command, USAGE, words, [out])

    with_deck("typo.toml", deck.replace("[run]\n", "[run]\nstep_limit = 3\nlog_evry = 4\n") + "[zer]\nstage = 1\n",
              "typos in a deck, all of them", ["typo.toml:", "step_limit", "log_evry", "log_every", "zer", "zero"], ranks=2)
    with_deck("types.toml", deck.replace("layers = 2", 'layers = "two"').replace("width = 32", "width = 32.5"), "wrong types in a deck, both of them",
              ["model.layers", "model.width", "types.toml:"])
    with_deck("syntax.toml", deck + "[batch\n", "a deck that is not TOML", ["syntax.toml:"])
    with_deck("whole.toml", deck, "a typo on the command line", ["'zero.stag=1'", "zero.stage?"], zero__stag=1)
    with_deck("whole.toml", deck, "a batch of no whole number of micro-batches", ["batch.global 61 is not divisible", "60 or 62"], ranks=2,
              batch__global=61, batch__micro=2)
    command = folder.command("deck", 1)
    command[command.index(folder.deck)] = folder.path + "/missing.toml"
    refused("a deck that is not there", command, USAGE, ["missing.toml"], [out])


def llm_c(tokens, promised):
    return struct.pack("<256i", 20240520, 1, promised, *[0] * 253) + struct.pack(f"<{len(tokens)}H", *tokens)


def data(folder):
    def refused_data(what, name, content, words, ranks=2, **keys):
        path = os.path.join(folder.path, name)
        if content is not None:
            with open(path, "wb") as file:
                file.write(content)
        refused(what, folder.command("data", ranks, data__train=path, **{**COMMON, **keys}), DATA, [path, *words], [folder.run("data")])

    with open(folder.data, "rb") as file:
        whole = file.read()
    text = os.path.join(folder.path, "text.txt")
    with open(text, "w") as file:
        file.write("In the beginning was the deck. " * 400)
    subprocess.run([runs.TESSERA, "tokenize", text, folder.path + "/tokens"], check=True, stdout=subprocess.DEVNULL)
    with open(folder.path + "/tokens/train.h5", "rb") as file:
        h5 = file.read()
    refused_data("no .bin", "missing.bin", None, ["the file is missing"])
    refused_data("no .h5", "missing.h5", None, ["the file is missing"])
    refused_data("an empty .bin", "empty.bin", b"", ["no tokens"])
    refused_data("an empty .h5", "empty.h5", b"", [])
    refused_data("half a token in a .bin", "half.bin", whole[:1001], ["truncated"])
    refused_data("a truncated .bin of llm.c", "llm.bin", llm_c(range(200), 300), ["truncated", "300"])
    refused_data("a truncated .h5", "cut.h5", h5[:len(h5) // 2], ["truncated"], model__vocab=320)
    refused_data("text called .h5", "text.h5", b"these are no tokens" * 100, [])
    refused_data("a file with fewer tokens than a sample", "short.bin", whole[:20], ["10 tokens", "13"])
    refused_data("an ending that means nothing", "tokens.txt", whole, [".h5", ".bin"])
    refused_data("the data's vocabulary is above the model's", "vocab.h5", h5, ["257", "model.vocab"])
    validation = {"evaluate__every": 2, "data__validation": folder.path + "/missing.bin"}
    refused("no validation data", folder.command("data", 2, **validation, **COMMON), DATA, ["missing.bin"], [folder.run("data")])
    # 60 samples of 12 tokens, all of which the first steps read: one token is not in the vocabulary of 211.
    tokens = [n % 211 for n in range(12 * 60 + 1)]
    tokens[345] = 211
    path = os.path.join(folder.path, "outside.bin")
    with open(path, "wb") as file:
        file.write(struct.pack(f"<{len(tokens)}H", *tokens))
    refused("a token outside the vocabulary", folder.command("outside", 2, data__train=path, **COMMON), DATA,
            [f"{path}: token 211 at position 345 is outside the vocabulary of 211"], once="error:", last="at position 345")


def altered(folder, name, change):
    """A copy of the run, changed; gives its path and that of its newest checkpoint."""
    target = folder.run(name)
    shutil.copytree(folder.run("made"), target, symlinks=True)
    step = os.path.realpath(target + "/checkpoints/latest")
    change(step)
    return target, step


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0x10]))


def make_run(folder):
    """A run of 3 ranks that has steps left: its newest checkpoint is what the tests damage."""
    keys = {**COMMON, **runs.ENDLESS, "zero__stage": 3}
    folder.train("made", 3, checkpoint__every=5, **{**keys, "run__steps": 7})
    return keys


def checkpoints(folder):
    keys = make_run(folder)
    shard = lambda step: step + "/shard-00002.h5"
    middle = lambda path: next(s["data_at"] + 40 for s in reversed(runs.directory(path)["slices"]) if s["end"] - s["begin"] > 20)
    cases = [
        ("a shard is missing", lambda s: os.remove(shard(s)), "shard-00002.h5", ["missing"]),
        ("a shard is truncated", lambda s: os.truncate(shard(s), os.path.getsize(shard(s)) - 100), "shard-00002.h5", ["truncated"]),
        ("a shard is empty", lambda s: os.truncate(shard(s), 0), "shard-00002.h5", ["empty"]),
        ("one bit of a shard's data is flipped", lambda s: flip(shard(s), middle(shard(s))), "shard-00002.h5", ["checksum", "tensor"]),
        ("one bit of a shard's directory is flipped", lambda s: flip(shard(s), 400), "shard-00002.h5", ["altered"]),
        ("one bit of the index's directory is flipped", lambda s: flip(s + "/checkpoint.h5", 400), "checkpoint.h5", ["altered"]),
        ("a shard of an older checkpoint is among them", lambda s: shutil.copy(shard(s + "/../step-00000005"), shard(s)), "shard-00002.h5",
         ["mixed"]),
    ]
    for number, (what, change, file, words) in enumerate(cases):
        # Only rank 2 of 3 reads this shard when the layout is as before; at other layouts others do.
        for ranks, stage in ((3, 3), (2, 1)):
            name = f"damaged{number}-{ranks}"
            path, step = altered(folder, name, change)
            refused(f"{what}, {ranks} ranks", folder.command(name, ranks, **{**keys, "zero__stage": stage}), CHECKPOINT,
                    [f"{step}/{file}", *words], [path], last=file)
        shutil.rmtree(folder.run(f"damaged{number}-2"))
    every_byte(folder)
    other_model = folder.command("other", 2, run__resume=folder.latest("made"), **{**keys, "model__ff_width": 64})
    refused("a checkpoint of another model", other_model, CHECKPOINT, ["layers.0.mlp.w_gate is 48 x 32 there and 64 x 32 in this deck"], [folder.run("other")])
    deeper = folder.command("other", 2, run__resume=folder.latest("made"), **{**keys, "model__layers": 3})
    refused("a checkpoint of a model with fewer layers", deeper, CHECKPOINT, ["layers.2.attention.norm"], [folder.run("other")])
    missing = folder.command("other", 2, run__resume=folder.path + "/nowhere/step-00000001", **keys)
    refused("run.resume is a path that is not there", missing, CHECKPOINT, ["nowhere/step-00000001", "no such checkpoint"], [folder.run("other")])
    another_deck(folder, {**keys, "run__output_dir": folder.run("made") + "/"})


def every_byte(folder):
    """A flipped bit anywhere in any file of a checkpoint is found by inspect --verify, which names the file."""
    _, step = altered(folder, "verify", lambda step: None)
    for file in ("shard-00001.h5", "checkpoint.h5"):
        path, missed = f"{step}/{file}", []
        size = os.path.getsize(path)
        for k in range(12):
            at = (k * size // 12 + 37 * k + 5) % size
            flip(path, at)
            done = subprocess.run([runs.TESSERA, "inspect", step, "--verify"], capture_output=True, text=True)
            if done.returncode != CHECKPOINT or path not in done.stderr:
                missed.append(f"byte {at} of {file}: status {done.returncode} {done.stderr}")
            flip(path, at)
        complain(f"a flipped bit at 12 places of {file}: inspect --verify names the file", missed, "")
    done = subprocess.run([runs.TESSERA, "inspect", step, "--verify"], capture_output=True, text=True)
    complain("flipped back, the checkpoint is whole again", [done.stderr] if done.returncode else [], done.stdout)


def another_deck(folder, keys):
    before = snapshot(folder.run("made"))
    other = {**keys, "optimizer__learning_rate": 0.004, "run__steps": 3}
    refused("the output folder of another deck", folder.command("made", 2, **other), USAGE,
            [folder.run("made"), "learning_rate = 0.003", "optimizer.learning_rate = 0.003, here 0.004", "run.overwrite=true"], [folder.run("made")])
    folder.train("made", 2, run__overwrite=True, **other)
    old = {path.replace(".old-1", ""): value for path, value in snapshot(folder.run("made") + ".old-1").items()}
    complain("with run.overwrite=true the other run lies whole beside the new one", [] if old == before else ["it was changed"], "")
    again = {**other, "run__overwrite": True, "data__train": folder.path + "/missing.bin"}
    refused("run.overwrite moves nothing when the start fails for another reason", folder.command("made", 2, **again), DATA, ["missing.bin"],
            [folder.run("made"), folder.run("made") + ".old-2"])


def permissions(folder):
    """Root may write anywhere: then the run is started as nobody."""
    closed = os.path.join(folder.path, "closed")
    os.mkdir(closed)
    os.chmod(closed, 0o555)
    become = []
    if os.geteuid() == 0:
        become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        os.chmod(folder.path, 0o755)
        if subprocess.run(become + [runs.TESSERA, "--version"], capture_output=True).returncode != 0:
            return print("SKIP no permission to write: nobody cannot start the program (setpriv, or the build folder is closed to others)")
    for where in ("closed/new/run", "closed"):
        command = become + folder.command(where, 1, **COMMON)
        refused(f"no permission to write in {where}", command, ENVIRONMENT, ["no permission", closed], [closed])
    if os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tessera-test", closed], capture_output=True).returncode == 0:
        refused("a file system that is mounted read-only", folder.command("closed/run", 2, **COMMON), ENVIRONMENT, [closed, "Read-only"])
        subprocess.run(["umount", closed], check=True)
    else:
        print("SKIP a read-only file system: mounting one needs root")
    file = os.path.join(folder.path, "file")
    with open(file, "w") as out:
        out.write("not a folder")
    refused("the output folder is a file", folder.command("file", 2, **COMMON), ENVIRONMENT, [file, "not a folder"], [file])


def save_fails(folder, name, ranks, keys, what, words, limits=None, prefix=()):
    """A save fails in the middle of a run: the checkpoint before it must be whole and be what the next start goes on from."""
    latest = folder.latest(name)
    before, step = snapshot(os.path.realpath(latest)), os.path.realpath(latest)
    refused(what, [*prefix, *folder.command(name, ranks, **keys)], STORAGE, [*words, "was not written; the one before it is intact", "Training stops here"],
            limits=limits)
    faults = [] if os.path.realpath(latest) == step and snapshot(step) == before else ["the checkpoint before was changed"]
    faults += [f"{entry} was left behind" for entry in os.listdir(folder.run(name) + "/checkpoints") if entry.endswith(".partial")]
    complain(what + ": the checkpoint before is whole", faults, "")


def two_runs(folder):
    """Two runs must not write into one folder: the second waits ten seconds, in case the first is about to go, and is refused."""
    keys = {**COMMON, **runs.ENDLESS}
    run = folder.start("busy", 1, **keys)
    run.wait_for_step(2)
    refused("a second run in the folder of a running one", folder.command("busy", 1, **keys), ENVIRONMENT,
            ["another run is writing in", folder.run("busy"), "process"])
    refused("run.overwrite moves no running run away", folder.command("busy", 1, **keys, run__overwrite=True, optimizer__learning_rate=0.004),
            ENVIRONMENT, ["another run is writing in"], [folder.run("busy") + ".old-1"])
    run.kill()


def full_disk(folder):
    keys = {**COMMON, "run__steps": 50, "learning_rate__schedule": "constant", "checkpoint__every": 20, "checkpoint__keep": 1}
    begun = {**keys, "run__steps": 7}
    folder.train("undisturbed", 1, **{**keys, "checkpoint__every": 0})
    reference = folder.losses("undisturbed"), folder.hashes("undisturbed")

    def goes_on(name, ranks):
        folder.train(name, ranks, **keys)
        same = runs.same(name, folder.losses(name), reference[0]) and runs.same(name, folder.hashes(name), reference[1])
        complain(f"{name}: with room again, the same command goes on to the same bits", [] if same else ["other bits"], "")

    # A limit on the size of files: the shard does not fit, deck.toml and metrics.jsonl do. Shared memory of MPI's transport would not
    # either, and one rank needs none.
    folder.train("limited", 1, **begun)
    most = os.path.getsize(folder.latest("limited") + "/shard-00000.h5") // 2
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    save_fails(folder, "limited", 1, keys, "a save above ulimit -f", ["shard-00000.h5", "ulimit -f"], limits=limit,
               prefix=["env", "UCX_TLS=self,tcp", "OMPI_MCA_btl=self", "PMIX_MCA_gds=hash"])
    goes_on("limited", 1)
    # A small file system that fills up.
    disk = folder.run("disk")
    os.mkdir(disk)
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tessera-test", disk], capture_output=True).returncode != 0:
        return print("SKIP a full disk: mounting a small tmpfs needs root")
    try:
        folder.train("disk", 2, **begun)
        room, spared = os.statvfs(disk), os.path.getsize(folder.latest("disk") + "/shard-00000.h5") // 2
        with open(disk + "/filler", "wb") as file:
            file.write(bytes(room.f_bavail * room.f_frsize - spared))
        save_fails(folder, "disk", 2, keys, "a full disk during a save", ["shard-0000", "disk is full"])
        os.remove(disk + "/filler")
        with open(disk + "/filler", "wb") as file:
            room = os.statvfs(disk)
            file.write(bytes(room.f_bavail * room.f_frsize))
        refused("a disk that is full at the start", folder.command("disk", 2, **keys), STORAGE, ["deck.toml", "disk is full"], [disk])
        os.remove(disk + "/filler")
        goes_on("disk", 2)
    finally:
        subprocess.run(["umount", disk], check=True)


def room_in_time(folder):
    """A save finds the disk full, and somebody makes room: it is tried again, and the run comes to its end with the bits of one that had room."""
    keys = {**COMMON, "checkpoint__every": 1, "checkpoint__keep": 1, "checkpoint__retries": 1000000, "learning_rate__schedule": "constant"}
    disk = folder.run("crowded")
    os.mkdir(disk)
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tessera-test", disk], capture_output=True).returncode != 0:
        return print("SKIP a disk that is full for a while: mounting a small tmpfs needs root")
    try:
        for beside in (False, True):
            keys["checkpoint__async"] = beside
            shutil.rmtree(disk + "/checkpoints", ignore_errors=True)
            folder.train("crowded", 2, **{**keys, "run__steps": 3})
            room = os.statvfs(disk)
            with open(disk + "/filler", "wb") as file:
                file.write(bytes(room.f_bavail * room.f_frsize - os.path.getsize(folder.latest("crowded") + "/shard-00000.h5") // 2))
            run = folder.start("crowded", 2, **{**keys, **runs.ENDLESS})
            runs.wait_until(lambda: "It is tried again after the next step" in run.output() or run.ended(), "a save that fails")
            os.remove(disk + "/filler")
            runs.wait_until(lambda: int(os.path.realpath(folder.latest("crowded"))[-8:]) > 3 or run.ended(), "a save that is tried again")
            going = not run.ended()
            run.signal_ranks(signal.SIGTERM)
            status, step = run.wait(), int(os.path.realpath(folder.latest("crowded"))[-8:])
            folder.train("roomy", 1, **{**keys, "checkpoint__every": 0, "run__steps": step})
            good = going and status == 75 and runs.same("crowded", folder.hashes("crowded"), folder.hashes("roomy"))
            complain(f"a disk that is full for a while, checkpoint.async = {beside}: the save is tried again, to the bits of a run with room",
                     [] if good else [f"status {status}"], run.output())
            shutil.rmtree(folder.run("roomy"))
    finally:
        subprocess.run(["umount", disk], check=True)


def tokenize(folder):
    out = os.path.join(folder.path, "words")
    for name, content, words in (("broken.txt", b"good line\nbad \xff byte\n", ["broken.txt:2", "byte offset 14", "0xff"]),
                                 ("cut.txt", "caf\u00e9".encode()[:-1], ["cut.txt:1", "inside a character"]),
                                 ("empty.txt", b"", ["no text"]),
                                 ("broken.jsonl", b'{"text": "a"}\n{"text": 3}\n', ["broken.jsonl:2", "text"]),
                                 ("missing.txt", None, ["missing.txt", "No such file"])):
        path = os.path.join(folder.path, name)
        if content is not None:
            with open(path, "wb") as file:
                file.write(content)
        refused(f"tokenize {name}", [runs.TESSERA, "tokenize", path, out], DATA, [name, *words], [out])


def resources(folder):
    # How large a plan is depends on the processor: products ask oneDNN for their workspace.
    limit = folder.plan(2, "--threads", "1", **COMMON)["bytes_per_rank"] - 1
    small = folder.command("small", 2, memory__host=f'"{limit} B"', **COMMON)
    said = refused("a plan above memory.host", small, MEMORY, ["memory.host", runs.human_bytes(limit), "Each of these makes it fit"], [folder.run("small")])
    # What a run offers, a run takes.
    changes = re.findall(r"^  (\S.*?): \S+ \S+ on each rank", said, re.M)
    complain(f"it offers three changes: {changes}", [] if len(changes) == 3 else [f"{len(changes)} changes"], said)
    for number, change in enumerate(changes):
        words, ranks = change.split(), 2
        if "--ranks" in words:
            at = words.index("--ranks")
            ranks = int(words.pop(at + 1))
            words.pop(at)
        command = folder.command(f"fits{number}", ranks, memory__host=f'"{limit} B"', **COMMON)
        done = subprocess.run([*command, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=runs.HANG_SECONDS)
        complain(f"{change} makes it fit", [] if done.returncode == 0 else [f"status {done.returncode}"], done.stderr)


def one_rank_dies(folder):
    run = folder.start("dies", 3, zero__stage=3, checkpoint__every=2, **{**COMMON, **runs.ENDLESS})
    run.wait_for_step(6)
    pids = run.everybody()
    run.signal_ranks(signal.SIGKILL, which=1)
    status = run.wait()
    runs.wait_until_gone(pids)
    faults = [] if status != 0 else ["status 0"]
    step = os.path.realpath(folder.latest("dies"))
    done = subprocess.run([runs.TESSERA, "inspect", step, "--verify", "--brief"], capture_output=True, text=True)
    faults += [done.stderr] if done.returncode else []
    complain(f"SIGKILL to one rank of 3: status {status}, all ended, {os.path.basename(step)} is whole", faults, run.output())


def numbers(folder):
    """A learning rate and a weight decay that make every weight grow a million times a step."""
    for mode in (True, False):
        name = f"explodes-{'reproducible' if mode else 'fast'}"
        keys = {**COMMON, "run__steps": 40, "run__reproducible": mode, "checkpoint__every": 1, "checkpoint__keep": 0,
                "optimizer__learning_rate": 1000, "optimizer__weight_decay": 1000, "learning_rate__warmup_steps": 0}
        refused(f"{name}: not finite", folder.command(name, 2, **keys), NUMERICS, ["error: step ", "optimizer.learning_rate", "run.output_dir=NEW"])
        last = int(os.readlink(folder.latest(name))[-8:])
        with open(folder.run(name) + "/metrics.jsonl") as lines:
            steps = sum('"loss"' in line for line in lines)
        done = subprocess.run([runs.TESSERA, "inspect", folder.latest(name), "--verify", "--brief"], capture_output=True, text=True)
        faults = [done.stderr] if done.returncode else []
        faults += [] if last == steps else [f"the last checkpoint is of step {last}, {steps} steps were done"]
        refused(f"{name}: says which step", folder.command(name, 2, **keys), NUMERICS, [f"step {steps + 1}: the loss or a gradient is not finite"],
                [folder.run(name) + "/checkpoints"])
        complain(f"{name}: the checkpoint of the step before is whole", faults, "")


PARTS = {part.__name__: part for part in (decks, data, checkpoints, permissions, two_runs, full_disk, room_in_time, tokenize, resources, one_rank_dies, numbers)}


def main():
    for name in sys.argv[1:] or PARTS:
        begin = time.time()
        with runs.Folder() as folder:
            PARTS[name](folder)
        print(f"     {name}: {time.time() - begin:.1f} s")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
