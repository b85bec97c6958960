#!/usr/bin/env python3
"""Token files that are not what they were: no damaged token trains, no token outside the vocabulary ends a run later than its start, and a file
is read whole once at most."""
import json
import os
import random
import signal
import struct
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

DATA, ENVIRONMENT, INTERRUPTED = 3, 6, 75
COMMON = {"run__steps": 4, "run__reproducible": True, "run__threads": 1, "batch__global": 12}
SCAN = "it has no checksums yet"
check = runs.Checks()


def write(path, data):
    with open(path, "wb") as file:
        file.write(data)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def ends(what, command, status, words=(), silent=(), folder=None):
    """The command ends with `status`, says each of `words` once in a line of its error, and none of `silent`."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=runs.HANG_SECONDS, cwd=folder)
    wrong = [f"status {done.returncode}"] if done.returncode != status else []
    wrong += [f"lacks {word!r}" for word in words if word not in done.stderr] + [f"has {word!r}" for word in silent if word in done.stderr]
    wrong += ["more than one error"] if done.stderr.count("error:") > 1 else []
    check(what + (": " + ", ".join(wrong) if wrong else ""), not wrong, done.stderr)


def flip(path, at):
    """A bit of the byte at `at`; size and time stay, as when a disk does it."""
    data, stat = bytearray(read(path)), os.stat(path)
    data[at] ^= 1
    with open(path, "r+b") as file:
        file.write(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def tokenized(folder, name, text):
    """NAME/train.h5 of an ASCII text, and its ids as they lie in it."""
    write(folder.path + "/text.txt", text)
    subprocess.run([runs.TESSERA, "tokenize", folder.path + "/text.txt", f"{folder.path}/{name}"], check=True, stdout=subprocess.DEVNULL)
    return f"{folder.path}/{name}/train.h5", struct.pack(f"<{len(text)}H", *text)


def same_bits(folder):
    """HDF5 with checksums, a .bin that is scanned, the same once it has been: one training. And what is kept beside a file."""
    h5, ids = tokenized(folder, "bits", b"".join(b"%d times the same bits. " % (n * n) for n in range(9000)))
    plain = folder.path + "/bits.bin"
    write(plain, ids)
    keys = {**COMMON, "model__vocab": 320}
    logs = [folder.train(name, ranks, data__train=data, **keys).stderr
            for name, ranks, data in (("h5", 2, h5), ("bin", 3, plain), ("again", 2, plain))]
    check("a file of tessera tokenize is not read whole at the start", SCAN not in logs[0], logs[0])
    check("a .bin is, once", SCAN in logs[1] and SCAN not in logs[2] and os.path.exists(plain + ".checked"), logs[1] + logs[2])
    check("the same tokens give the same losses", folder.losses("h5") == folder.losses("bin") == folder.losses("again"))
    ends("a vocabulary that is too small for what was found", folder.command("small", 2, data__train=plain, **{**keys, "model__vocab": 100}), DATA,
         [f"{plain}: token ", "outside the vocabulary of 100"], [SCAN])
    os.utime(plain)
    os.mkdir(plain + ".checked.partial")
    log = folder.train("touched", 2, data__train=plain, **keys).stderr
    check("a file of another time is read again; a run goes on where nothing can be kept",
          SCAN in log and "the next start checks" in log and folder.losses("touched") == folder.losses("h5"), log)


def damage(folder):
    """A flipped bit in a block that the first steps read, with and without checksums in the file; `tessera evaluate` sees it too."""
    h5, ids = tokenized(folder, "damage", b"one block of tokens, and every sample of it is wanted. " * 12)
    keys = {**COMMON, "model__vocab": 320}
    folder.train("trained", 1, data__train=h5, **keys)
    plain = folder.path + "/damage.bin"
    write(plain, ids)
    folder.train("scanned", 2, data__train=plain, **keys)
    for path, when in ((h5, "written"), (plain, "checked")):
        flip(path, read(path).index(ids) + 200)
        words = [f"{path}: tokens 0 to {len(ids) // 2 - 1} (block 0 of 1) have changed since the file was {when}", "Restore the file"]
        ends(f"a flipped bit in {os.path.basename(path)}", folder.command("flipped-" + when, 2, data__train=path, **keys), DATA, words)
        ends("... and in an evaluation", [runs.TESSERA, "evaluate", folder.latest("trained"), "--data", path, "--device", "host"], DATA, words)


def overwritten(folder):
    """Tokens that a run has read before are written over while it goes on, by others of the same file: it ends at the step that wants them."""
    h5, ids = tokenized(folder, "overwritten", b"".join(b"%d of many blocks of tokens. " % (n * n) for n in range(9000)))
    plain = folder.path + "/overwritten.bin"
    write(plain, ids)
    for path, when in ((h5, "written"), (plain, "checked")):
        run = folder.start("overwritten-" + when, 1, data__train=path, **{**COMMON, "model__vocab": 320, "run__steps": 1000000})
        run.wait_for_step(30)
        with open(path, "r+b") as file:
            file.seek(read(path).index(ids[:65536]))
            file.write(ids[150:] + ids[:150])
        status, said = run.wait(), run.output()
        wanted = ["error: step ", f"{path}: tokens ", f"have changed since the file was {when}", "Restore the file"]
        check(f"{os.path.basename(path)} is written over during a run", status == DATA and all(word in said for word in wanted), f"status {status}\n{said}")


def many_files(folder):
    """More files than a process may have open: the soft limit is raised as far as the hard one goes; beyond, both are said and what to set."""
    draw, h5, bins = random.Random(5), [], []
    for k in range(24):
        bins.append(f"{folder.path}/many{k}.bin")
        write(bins[-1], struct.pack("<40H", *[draw.randrange(200) for _ in range(40)]))
        h5.append(tokenized(folder, f"many{k}", b"one of many files %d " % k * 4)[0])
    keys = {"data__weights": json.dumps([1] * 24), "model__vocab": 257, "run__steps": 2}
    for form, files in (("bin", bins), ("h5", h5)):
        command = folder.command(f"many-{form}", 1, data__train=json.dumps(files), **{**COMMON, **keys})
        ends(f"24 files of {form}, and 20 more open ones by the soft limit", ["prlimit", "--nofile=20:4096", *command, "run.overwrite=true"], 0, [])
        for limit in range(20, 24):  # at one of them it is the library of HDF5 that cannot open a file
            ends(f"24 files of {form}, where {limit} may be open", ["prlimit", f"--nofile={limit}:{limit}", *command, "run.output_dir=" + folder.run("too-many")], DATA,
                 ["Too many open files", f"may have {limit} files open, and the system lets it have {limit}", "ulimit -n 4096"])


def wrong_files(folder):
    pipe = folder.path + "/pipe.bin"
    os.mkfifo(pipe)
    ends("a pipe for token file", folder.command("wrong", 2, data__train=pipe, **COMMON), DATA, [f"{pipe}: this is a pipe"])
    wide = folder.path + "/wide.bin"
    write(wide, struct.pack("<4000I", *[n * n % 211 for n in range(4000)]))
    ends("ids of 32 bits", folder.command("wrong", 2, data__train=wide, **COMMON), DATA, [wide, "32 bits", 'data.bin_ids = "uint32"'])
    header = struct.pack("<256i", 20240520, 3, 1000, *[0] * 253)
    write(folder.path + "/version.bin", header + bytes(2000))
    ends("another version of llm.c's header", folder.command("wrong", 2, data__train=folder.path + "/version.bin", **COMMON), DATA, ["version 3"])
    # As many tokens on each rank, but others.
    for name in ("here", "there"):
        tokenized(folder, name, f"each node has a copy of its own, {name:5} ".encode() * 30)
    each = [runs.TESSERA, "train", folder.deck, f"run.output_dir={folder.run('copies')}", "data.train=train.h5"]
    each += runs.overrides({**COMMON, "model__vocab": 320})
    ends("another file on another rank", [runs.MPIEXEC, "-n", "1", "-wdir", folder.path + "/here", *each, ":", "-n", "1", "-wdir",
                                          folder.path + "/there", *each], ENVIRONMENT, ["token file train.h5 of rank 1 on "])


def stopped(folder):
    """A signal while a file is checked that takes minutes: a terabyte of zeros, none of them on the disk."""
    endless = folder.path + "/endless.bin"
    with open(endless, "wb") as file:
        file.truncate(1 << 40)
    for ranks, which in ((1, None), (3, 1)):
        run = folder.start("stopped", ranks, data__train=endless, **COMMON)
        runs.wait_until(lambda: SCAN in run.output() or run.ended(), "the check to begin")
        run.signal_ranks(signal.SIGTERM, which)
        status = run.wait()
        check(f"SIGTERM to {'a rank' if which else 'all'} of {ranks} that check a file", status == INTERRUPTED and endless in run.output() and
              not os.path.exists(folder.latest("stopped")) and not os.path.exists(endless + ".checked"), f"status {status}\n{run.output()}")


PARTS = {part.__name__: part for part in (same_bits, damage, overwritten, many_files, wrong_files, stopped)}

if __name__ == "__main__":
    for part in sys.argv[1:] or PARTS:
        with runs.Folder() as scratch:
            PARTS[part](scratch)
    sys.exit(0 if check.good else 1)
