"""compute-sanitizer over the tests of sources that launch kernels, each binary whole: its tests are small, and each runs kernels that others do not.

Only kernels with the program's namespace in their name are instrumented. Those of cuBLASLt and cuDNN are not ours to fix, and take most of the time.
Errors of calls to CUDA are not counted either: libraries query optional features, and our own calls are all checked. A row says how many of a
binary's tests it covers. Racecheck sees races over shared memory alone; no tool finds those over global memory."""

import glob
import os
import re
import shutil

from .device_tests import cases_in, names_of
from .report import row

OURS = "kns=tessera"
LEFT_OUT = "Traps"  # ends of names: tests whose child process is to die of a trap, which is no fault
# The tool's last word. Its exit status alone says nothing where it did not attach.
CLEAN = {"memcheck": r"ERROR SUMMARY: 0 errors", "racecheck": r"RACECHECK SUMMARY: 0 hazards displayed \(0 errors, 0 warnings\)"}
# What is told of a fault when it is found, and no more where the program is ended before its summary.
FAULT = r"^=+ .*(Invalid|Misaligned|Out-of-range|[Hh]azard|Race reported)"
LIMIT = {"memcheck": 1, "racecheck": 1.5}  # times that of a test
SEES = {"memcheck": "", "racecheck": "; shared memory only"}


def has_kernels(entry):
    """Binaries on one rank; kernels of NCCL are not ours."""
    return entry["ranks"] == 1 and entry["kind"] != "script" and "nccl" not in entry["name"]


def find():
    found = shutil.which("compute-sanitizer")
    places = glob.glob("/usr/local/cuda*/bin/compute-sanitizer") + glob.glob("/opt/cuda*/bin/compute-sanitizer")
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if home:
        places.insert(0, os.path.join(home, "bin", "compute-sanitizer"))
    return found or next((place for place in places if os.access(place, os.X_OK)), None)


def verdict(kind, done):
    """(result, message)"""
    if done.status == 77:
        return "skipped", "every test skipped itself"
    if done.status == 0 and re.search(CLEAN[kind], done.out + done.err):
        return "passed", ""
    if done.late and not re.search(FAULT, done.out + done.err, re.MULTILINE):
        return "skipped", f"no fault until its {done.seconds:.0f} s were over"
    return "failed", f"{done.text()}\nstatus {done.status}" + ("" if done.status else ", and no summary without errors")


class Sanitizer:
    def __init__(self, programs, seconds):
        self.programs, self.seconds, self.tool, self.refusal = programs, seconds, find(), None

    def command(self, kind, *what):
        return [self.tool, "--tool", kind, "--kernel-name", OURS, "--target-processes", "application-only", "--report-api-errors", "no",
                "--error-exitcode", "99", *what]

    def why_not(self):
        """Why it cannot be used here; empty where it can. Tried once, on a copy of a megabyte: some virtual machines refuse the tool the device."""
        if not self.tool:
            return "compute-sanitizer is not on this machine"
        if self.refusal is None:
            done = self.programs.run(self.command("memcheck", self.programs.benchmark(), "--mib", "1", "--repeat", "1", "--group", "limits"), self.seconds)
            if done.late and self.programs.clock.over():
                return "no time was left to try compute-sanitizer"
            works = done.status == 0 and re.search(CLEAN["memcheck"], done.out + done.err)
            said = [line for line in done.text().splitlines() if line.startswith("=========") and len(line) > 10]
            self.refusal = "" if works else "compute-sanitizer does not work here: " + (said[-1] if said else f"status {done.status}")
            for line in said:
                if "not supported" in line:
                    self.refusal = f"compute-sanitizer does not work here: {line.strip('= ')}"
        return self.refusal

    def tests_of(self, entry):
        """(those to run, how many there are)"""
        names = names_of(self.programs, entry, self.seconds)
        return [name for name in names if not name.endswith(LEFT_OUT)], len(names)

    def check(self, kind, entry):
        refusal = self.why_not()
        if refusal:
            late = self.programs.clock.over()
            return [row(kind, entry["name"], "failed" if late else "skipped", 0, refusal, late)]
        chosen, count = self.tests_of(entry)
        command = self.command(kind, self.programs.test(entry), *entry["arguments"], *([f"--gtest_filter={':'.join(chosen)}"] if chosen else []))
        done = self.programs.run(command, self.seconds * LIMIT[kind])
        result, message = verdict(kind, done)
        covered = sum(result == "passed" for _, result, _, _ in cases_in(done.out))
        if result != "failed":
            message = f"{covered} of {count} tests{SEES[kind]}" + (f"; {message}" if message else "")
        return [row(kind, entry["name"], result, done.seconds, message, done.late)]
