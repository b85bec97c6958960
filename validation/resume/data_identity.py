#!/usr/bin/env python3
"""Which data a run is of: other contents are refused on a resume, whatever the path; the same contents go on with the same bits, wherever they lie and in
whatever form; and what a refusal advises works."""
import json
import os
import shutil
import struct
import subprocess
import sys

import runs

check = runs.Checks()
USAGE = 2  # exit status
COMMON = {"batch__global": 6, "run__reproducible": True, "checkpoint__keep": 0, "learning_rate__schedule": "constant"}


def write(path, content):
    with open(path, "wb") as out:
        out.write(content)
    return path


def headed(content):
    """As llm.c writes it."""
    return struct.pack("<256i", 20240520, 1, len(content) // 2, *[0] * 253) + content


def main():
    with runs.Folder() as folder:
        with open(folder.data, "rb") as file:
            tokens = file.read()
        turned, first, second = tokens[2000:] + tokens[:2000], folder.path + "/first.bin", folder.path + "/second.bin"
        pair = {"data__train": json.dumps([first, second]), "data__weights": [2, 1]}

        def restore():
            write(folder.data, tokens), write(first, tokens[:20000]), write(second, tokens[20000:])

        restore()
        for kind, keys in (("one", {}), ("two", pair)):
            folder.train(kind + "-whole", 1, **COMMON, **keys, run__steps=4)
            folder.train(kind, 1, **COMMON, **keys, run__steps=2)

        def resume(kind, name, expect, ranks=1, **keys):
            shutil.copytree(folder.run(kind), folder.run(name), symlinks=True)
            return folder.train(name, ranks, expect=expect, **{**COMMON, **(pair if kind == "two" else {}), **keys}, run__steps=4)

        # Other contents: what is changed, and what is said besides.
        refused = [("one", "the same path, other data", lambda: write(folder.data, turned), {}, [f"file 1 was {folder.data}: 20000 tokens", f"and is {folder.data}: 20000 tokens"]),
                   ("one", "a file that was appended to", lambda: write(folder.data, tokens + tokens[:2]), {}, [f"and is {folder.data}: 20001 tokens"]),
                   ("one", "another path, other data", lambda: write(folder.path + "/other.bin", turned), {"data__train": folder.path + "/other.bin"}, ["other.bin: 20000 tokens"]),
                   ("two", "a file of a mixture exchanged", lambda: write(second, turned[20000:]), {}, [f"file 2 was {second}"]),
                   ("two", "files of a mixture in another order", lambda: None, {"data__train": json.dumps([second, first])}, ["the same files in another order"])]
        for number, (kind, what, change, keys, said) in enumerate(refused):
            change()
            done = resume(kind, f"refused{number}", USAGE, ranks=1 + number % 2, **keys)
            check(f"{what}: refused with both digests and what to do", all(words in done.stderr for words in ["data.train holds other data", "run.resume=", *said])
                  and done.stderr.count(", digest ") >= 2 and "file 3" not in done.stderr, done.stderr)
            latest = os.path.realpath(folder.latest(f"refused{number}"))
            check(f"{what}: nothing is touched", latest.endswith("step-00000002"), latest)
            done = folder.train(f"begun{number}", 1, **{**COMMON, **(pair if kind == "two" else {}), **keys}, run__steps=4, run__resume=latest)
            check(f"{what}: a run of its own goes on with them, and says so", "holds other data than" in done.stderr and sorted(folder.losses(f"begun{number}")) == [3, 4], done.stderr)
            restore()
        write(folder.data, turned)
        folder.train("refused0", 2, **COMMON, run__steps=4, run__overwrite=True)
        check("with run.overwrite=true it begins anew, and the run that was there is kept",
              sorted(folder.losses("refused0")) == [1, 2, 3, 4] and os.path.isdir(folder.run("refused0") + ".old-1/checkpoints"))
        restore()

        # The same contents.
        moved = write(folder.path + "/moved.bin", tokens)
        os.mkdir(folder.path + "/elsewhere")
        same = [("one", "another path", {"data__train": moved}), ("one", "a link", {"data__train": folder.path + "/link.bin"}),
                ("one", "another form", {"data__train": write(folder.path + "/headed.bin", headed(tokens))}),
                ("two", "a mixture elsewhere", {"data__train": json.dumps([shutil.copy(path, folder.path + "/elsewhere") for path in (first, second)])})]
        os.symlink(moved, folder.path + "/link.bin")
        for number, (kind, what, keys) in enumerate(same):
            done = resume(kind, f"same{number}", 0, ranks=1 + number % 2, **keys)
            check(f"{what}: goes on with the same bits", folder.hashes(f"same{number}") == folder.hashes(kind + "-whole") and "other data" not in done.stderr, done.stderr)

        # What a checkpoint says of it.
        inspect = lambda *options: runs.tessera("inspect", folder.latest("two"), *options).stdout
        data = json.loads(inspect("--json", "--brief"))["data"]
        check("inspect shows the files, their digests, sizes and shares", [file["path"] for file in data] == [first, second] and [file["tokens"] for file in data] == [10000, 10000]
              and [file["file_bytes"] for file in data] == [20000, 20000] and abs(data[0]["share"] - 2 / 3) < 1e-5
              and all(file["xxh3"] in inspect("--brief") for file in data), str(data))
        if shutil.which("h5dump"):
            dump = subprocess.run(["h5dump", "-a", "/data_xxh3", "-d", "/data", folder.latest("one") + "/checkpoint.h5"], capture_output=True, text=True)
            check("any HDF5 tool shows them", dump.returncode == 0 and folder.data in dump.stdout, dump.stdout + dump.stderr)
    sys.exit(0 if check.good else 1)


if __name__ == "__main__":
    main()
