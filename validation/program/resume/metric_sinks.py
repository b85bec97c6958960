#!/usr/bin/env python3
"""metrics.csv and metrics.tensorboard have every row of metrics.jsonl once, whatever became of the starts: one that is killed, one that goes on at another
layout, one from before the keys were set. Usage: metric_sinks.py [--library]      --library: event files are read by PyPI's tensorboard too"""
import collections
import csv
import glob
import json
import math
import os
import struct
import sys

import runs

BOTH = {"metrics__csv": True, "metrics__tensorboard": True}
KEYS = {**runs.ENDLESS, "run__reproducible": True, "batch__global": 4, "model__experts": 2, "model__experts_per_token": 1, "checkpoint__every": 3,
        "evaluate__every": 2, "evaluate__batches": 1}


def rows_of(run):
    """Rows of whole lines."""
    with open(f"{run}/metrics.jsonl") as lines:
        return [json.loads(line) for line in lines if line.endswith("\n")]


def varint(data, at):
    value, shift = 0, 0
    while True:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at


def fields(data):
    """(number, value) of a protobuf message."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        elif key & 7 == 2:
            size, at = varint(data, at)
            value, at = data[at:at + size], at + size
        else:
            kind, size = {1: ("<d", 8), 5: ("<f", 4)}[key & 7]
            value, at = struct.unpack(kind, data[at:at + size])[0], at + size
        yield key >> 3, value


def scalars_of(path):
    """{tag: [(step, value)]} of the whole records of an event file."""
    with open(path, "rb") as file:
        data = file.read()
    found, at = collections.defaultdict(list), 0
    while at + 12 <= len(data) and at + 16 + (size := struct.unpack("<Q", data[at:at + 8])[0]) <= len(data):
        event = list(fields(data[at + 12:at + 12 + size]))
        at += 16 + size
        step = dict(event).get(2, 0)
        for value in (dict(fields(v)) for number, summary in event if number == 5 for _, v in fields(summary)):
            found[value[1].decode()].append((step, value[2]))
    return found


def scalars_by_library(path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # pylint: disable=import-outside-toplevel
    events = EventAccumulator(path, size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def wanted_scalars(rows):
    wanted = collections.defaultdict(list)
    for row in rows:
        for key, value in row.items():
            parts = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else [(None, value)]
            for name, number in parts:
                if key not in ("step", "time") and isinstance(number, (int, float)):
                    wanted[key if name is None else f"{key}/{name}"].append((row["step"], struct.unpack("<f", struct.pack("<f", number))[0]))
    return wanted


def check_sinks(check, what, run, readers):
    rows = rows_of(run)
    steps = [row["step"] for row in rows if "loss" in row]
    check(f"{what}: no step stands twice in metrics.jsonl", steps == list(range(1, len(steps) + 1)), str(steps))
    with open(f"{run}/metrics.csv", newline="") as file:
        table = list(csv.DictReader(file))
    columns = [name for name in table[0] if name not in ("step", "time")]
    numbers = [{"step": row["step"], **{name: row[name] for name in columns if isinstance(row.get(name), (int, float))}} for row in rows]
    numbers = [row for row in numbers if len(row) > 1]
    of_table = [{name: float(cell) for name, cell in row.items() if cell and name != "time"} for row in table]
    check(f"{what}: metrics.csv has its {len(numbers)} rows", of_table == numbers and all(math.isfinite(float(row["time"])) for row in table),
          f"{of_table}\n{numbers}")
    files = glob.glob(f"{run}/tensorboard/*")
    for reader in readers:
        found = reader(files[0])
        check(f"{what}: {reader.__name__} finds all of {len(found)} scalars", len(files) == 1 and found == wanted_scalars(rows),
              f"{files}\n{found}\n{wanted_scalars(rows)}")


def main():
    readers = [scalars_of]
    if "--library" in sys.argv[1:]:
        try:
            import tensorboard  # noqa: F401 pylint: disable=import-outside-toplevel,unused-import
        except ImportError as error:
            print(f"skipped: {error}; run scripts/setup --peer", file=sys.stderr)
            sys.exit(77)
        readers.append(scalars_by_library)
    check = runs.Checks()
    with runs.Folder() as folder:
        keys = {**KEYS, "data__validation": folder.data}
        run = folder.run("run")
        folder.train("run", ranks=2, **{**keys, "run__steps": 4})
        check("without the keys there is neither", not os.path.exists(f"{run}/metrics.csv") and not os.path.exists(f"{run}/tensorboard"))
        begun = folder.start("run", 2, **keys, **BOTH)
        begun.wait_for_step(8)
        begun.kill()
        with open(f"{run}/metrics.csv", newline="") as file:
            check("a killed start leaves a table that can be read", len(list(csv.DictReader(file))) >= 8)
        check("and an event file", len(scalars_of(glob.glob(f"{run}/tensorboard/*")[0])["loss"]) >= 7)
        folder.train("run", ranks=1, **{**keys, **BOTH, "run__steps": 14})
        check_sinks(check, "after a kill", run, readers)
        folder.train("run", ranks=2, **{**keys, **BOTH, "run__steps": 16, "zero__stage": 1})
        check_sinks(check, "at another layout", run, readers)
    sys.exit(not check.good)


if __name__ == "__main__":
    main()
