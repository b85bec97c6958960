"""The memory of a process that a test has started: what stands in it is found by its bytes and changed, as a fault of the memory would. Linux alone."""
import json
import os
import re
import signal
import sys

import runs


def initial_row(folder, name, tensor, row, **keys):
    """The bytes of a row of a matrix of the model's weights, fp32, as a short run of these keys ends with them. `tensor` is the exported model's."""
    folder.train(name, 1, **keys)
    out = folder.run(name + "-weights")
    done = runs.tessera("consolidate", folder.latest(name), out)
    if done.returncode:
        sys.exit(f"FAIL consolidate: {done.stderr}")
    with open(os.path.join(out, "model.safetensors"), "rb") as weights:
        size = int.from_bytes(weights.read(8), "little")
        entry = json.loads(weights.read(size))[tensor]
        width = 4 * entry["shape"][1]
        weights.seek(8 + size + entry["data_offsets"][0] + width * row)
        return weights.read(width)


class Stopped:
    """A process that stands still meanwhile."""

    def __init__(self, pid):
        self.pid = pid

    def __enter__(self):
        os.kill(self.pid, signal.SIGSTOP)
        runs.wait_until(lambda: all(self._state(task) in "Tt" for task in os.listdir(f"/proc/{self.pid}/task")), "the process to stand still")
        self.memory = open(f"/proc/{self.pid}/mem", "r+b", buffering=0)
        return self

    def __exit__(self, *unused):
        self.memory.close()
        os.kill(self.pid, signal.SIGCONT)

    def _state(self, task):
        with open(f"/proc/{self.pid}/task/{task}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0]

    def find(self, wanted):
        """Addresses at which these bytes stand in memory that the process may write."""
        places = []
        with open(f"/proc/{self.pid}/maps") as maps:
            ranges = [line.split() for line in maps]
        for fields in ranges:
            if "w" not in fields[1] or fields[-1] in ("[vvar]", "[vsyscall]"):
                continue
            begin, end = (int(number, 16) for number in fields[0].split("-"))
            try:
                self.memory.seek(begin)
                text = self.memory.read(end - begin)
            except (OSError, ValueError, OverflowError):
                continue
            places += [begin + match.start() for match in re.finditer(re.escape(wanted), text)]
        return places

    def write(self, place, text):
        self.memory.seek(place)
        self.memory.write(text)
