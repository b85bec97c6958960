"""Token files, read with h5dump, so that no Python package is needed."""

import array
import json
import os
import re
import subprocess
import tempfile

CODES = {"U8": "B", "U16": "H", "U32": "I", "I64": "q"}


def h5dump(*arguments):
    return subprocess.run(["h5dump", *arguments], check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout


def values(path, dataset):
    """All of a dataset of integers with one dim."""
    code = CODES[re.search(r"H5T_STD_([UI]\d+)LE", h5dump("-H", "-d", dataset, path))[1]]
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "values")
        h5dump("-d", dataset, "-b", "LE", "-o", out, path)
        found = array.array(code)
        with open(out, "rb") as file:
            found.frombytes(file.read())
    return found


def read(path):
    """Documents of a token file, each as (ids, counts), and what the file says of itself."""
    ids = values(path, "/tokens").tolist()
    starts = [*values(path, "/documents"), len(ids)]
    mask = [1] * len(ids)
    if "/loss_mask" in h5dump("-n", path).split():
        mask = [byte >> bit & 1 for byte in values(path, "/loss_mask") for bit in range(8)][: len(ids)]
    text = re.search(r"\(0\): \"(.*)\"\n", h5dump("-a", "/facts", path), re.S)[1]
    return [(ids[a:b], mask[a:b]) for a, b in zip(starts, starts[1:])], json.loads(text.replace('\\"', '"'))
