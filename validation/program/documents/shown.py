#!/usr/bin/env python3
"""The log that README and docs/quickstart.md show is the log of a quickstart that has just run: each line is there, and its numbers are those of the run. Speed, shares of
a peak and times belong to the machine that the page names; they are not compared.
    shown.py LOG       what scripts/quickstart printed"""
import re
import sys

import pages

NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
# What stands before or behind a number, and how far it may be from the run's: None where it is the machine's. The first that matches counts.
BOUNDS = [
    (r"", r" ?[KM]? ?tokens/s| s\b| min| %", None),
    (r"(val_loss|loss) ", r"", lambda a, b: abs(a - b) <= 0.1),  # bf16 rounds as the processor does
    (r"grad norm ", r"", lambda a, b: abs(a - b) <= 0.3 * max(a, b)),
    (r"", r" [KMG]iB", lambda a, b: abs(a - b) <= 0.1 * max(a, b)),  # oneDNN's workspace is the processor's
    (r"", r"", lambda a, b: a == b),
]


def numbers(line):
    """(number, its bound) of each number of a line."""
    for match in re.finditer(NUMBER, line):
        before, behind = line[:match.start()], line[match.end():]
        bound = next(bound for first, then, bound in BOUNDS if re.search(first + "$", before) and re.match(then, behind))
        yield float(match[0]), bound


def shape(line):
    """A line without its numbers, and without units that follow the size of a number."""
    line = re.sub(r" left .*", " left", line)
    return re.sub(r"\s+", " ", re.sub(r"\b[KMG]i?B?(?= )", "", re.sub(NUMBER, "#", line))).strip()


def step_of(line):
    found = re.match(r"step +(\d+)", line)
    return int(found[1]) if found else None


def shown_lines(page):
    """Lines of logs on a page: of a block that holds a step's line, but for those that leave something out."""
    for _, lines in pages.blocks_of(page, pages.read(page)):
        if any(re.match(r"step +\d+/\d+ ", line.text) for line in lines):
            yield from (line for line in lines if line.text.strip() != "...")


def compare(line, log):
    """What is wrong with a shown line, or ""."""
    alike = [other for other in log if shape(other) == shape(line.text) and step_of(other) == step_of(line.text)]
    if not alike:
        return "the run printed no such line"
    for other in alike:
        pairs = list(zip(numbers(line.text), numbers(other)))
        if all(bound is None or bound(a, b) for (a, bound), (b, _) in pairs):
            return ""
    return f"the run printed: {alike[0].strip()}"


def main():
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    with open(sys.argv[1], encoding="utf-8", errors="replace") as file:
        log = [line.rstrip("\n").strip() for line in file]
    faults, count = [], 0
    for page in ("README.md", "docs/quickstart.md"):
        for line in shown_lines(page):
            count += 1
            if wrong := compare(line, log):
                faults.append(f"{line}: {line.text.strip()}\n     | {wrong}")
    if count < 8:
        faults.append(f"only {count} lines of a log were found in README.md and docs/quickstart.md")
    print("\n".join(faults) if faults else f"{count} lines of the log in README.md and docs/quickstart.md are those of the run")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
