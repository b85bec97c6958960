"""compute-sanitizer over the kernels' tests: memcheck of all of them, racecheck of a few of each binary, which is slower by far.

Only kernels with the program's namespace in their name are instrumented: those of cuBLASLt and cuDNN are not ours to mend, and take most of the time."""

import glob
import os
import re
import shutil

from .report import row

OURS = "kns=tessera"
RACECHECK_TESTS = 6  # of a binary, spread over its list
# The tool's last word. Its exit status alone says nothing where it did not attach.
CLEAN = {"memcheck": r"ERROR SUMMARY: 0 errors", "racecheck": r"RACECHECK SUMMARY: 0 hazards displayed \(0 errors, 0 warnings\)"}
SLOWER = {"memcheck": 3, "racecheck": 3}  # times the limit of a test


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
    return "failed", f"{done.text()}\nstatus {done.status}" + ("" if done.status else ", and no summary without errors")


class Sanitizer:
    def __init__(self, programs, seconds):
        self.programs, self.seconds, self.tool, self.refusal = programs, seconds, find(), None

    def command(self, kind, *what):
        return [self.tool, "--tool", kind, "--kernel-name", OURS, "--target-processes", "application-only", "--error-exitcode", "99", *what]

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

    def some_tests(self, entry):
        """A filter of a few tests of a binary, evenly spread; empty where it lists none."""
        listed = self.programs.run([self.programs.test(entry), "--gtest_list_tests", *entry["arguments"]], self.seconds).out
        names, suite = [], ""
        for line in listed.splitlines():
            word = line.split("#")[0].rstrip()
            if word and not word.startswith(" ") and word.endswith("."):
                suite = word
            elif suite and word.startswith("  "):
                names.append(suite + word.strip())
        step = max(1, -(-len(names) // RACECHECK_TESTS))
        return ":".join(names[::step])

    def check(self, kind, entry):
        refusal = self.why_not()
        if refusal:
            late = self.programs.clock.over()
            return [row(kind, entry["name"], "failed" if late else "skipped", 0, refusal, late)]
        arguments = list(entry["arguments"])
        if kind == "racecheck":
            chosen = self.some_tests(entry)
            if chosen:
                arguments.append(f"--gtest_filter={chosen}")
        done = self.programs.run(self.command(kind, self.programs.test(entry), *arguments), self.seconds * SLOWER[kind])
        result, message = verdict(kind, done)
        return [row(kind, entry["name"], result, done.seconds, message, done.late)]
