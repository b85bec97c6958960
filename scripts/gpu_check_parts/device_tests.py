"""Tests with label gpu: a row for each test of a GoogleTest binary; one row for a script, or for a program on several ranks."""

import json
import os
import re
import sys
import tempfile

from .report import row

STOPPED = re.compile(r"^\[ STOPPED +\] (\S+)", re.MULTILINE)  # a test that broke its process's device, by validation/test_run.hpp
STOPS = 5  # processes of a binary whose device may be broken: behind them the rest is not run
SCRIPT_TIMES = 4  # a script starts many programs, so it may take as often the time of one
ORDER = ("kernels", "parity", "program", "script")


def in_order(entries):
    """What stands alone comes first, and programs on few ranks before those on many: ranks that hang over one GPU cost nothing else its turn."""
    return sorted(entries, key=lambda entry: (ORDER.index(entry["kind"]), entry["ranks"]))


def why_skipped(entries, entry, report):
    """The row of an entry on several ranks where the first of those in order, NCCL on two ranks of one GPU, has failed; none for what is to be run."""
    first = next((other["name"] for other in entries if other["ranks"] > 1), None)
    failed = any(r["job"] == f"tests/{first}" and r["result"] == "failed" for r in report.tests)
    if entry["ranks"] == 1 or entry["name"] == first or not failed:
        return []
    return [row(entry["name"], "(the program)", "skipped", 0, f"not run on several ranks of one GPU, since {first} failed; once that passes, run it with "
                f"--only {entry['name']}")]


def cases_of(report):
    """GoogleTest's JSON: (name, result, seconds, message) of each test that was to run."""
    for suite in report.get("testsuites", []):
        for case in suite.get("testsuite", []):
            if case.get("status") == "NOTRUN":
                continue
            name = f"{suite['name']}.{case['name']}"
            seconds = float(case.get("time", "0s").rstrip("s"))
            failures = "\n".join(failure["failure"] for failure in case.get("failures", []))
            skipped = case.get("result") == "SKIPPED"
            yield name, "failed" if failures else "skipped" if skipped else "passed", seconds, failures


def cases_in(output):
    """The same of what a binary printed until it was ended, which leaves no JSON. A test that failed has its words in the whole output."""
    words = {"OK": "passed", "SKIPPED": "skipped", "FAILED": "failed"}
    for found in re.finditer(r"^\[ +(OK|SKIPPED|FAILED) +\] (\S+\.\S+?),? .*\((\d+) ms\)$", output, re.MULTILINE):
        failed = found[1] == "FAILED"
        yield found[2], words[found[1]], int(found[3]) / 1e3, output if failed else ""


def names_of(programs, entry, seconds):
    """The tests of a binary, in their order."""
    listed = programs.run([programs.test(entry), "--gtest_list_tests", *entry["arguments"]], seconds).out
    names, suite = [], ""
    for line in listed.splitlines():
        word = line.split("#")[0].rstrip()
        if word and not word.startswith(" ") and word.endswith("."):
            suite = word
        elif suite and word.startswith("  "):
            names.append(suite + word.strip())
    return names


def run_once(programs, entry, seconds, chosen):
    """(how the process ended, rows of its tests, the test that broke the device)"""
    with tempfile.TemporaryDirectory() as scratch:
        report = os.path.join(scratch, "report.json")
        done = programs.run([programs.test(entry), *entry["arguments"], f"--gtest_output=json:{report}", *chosen], seconds)
        try:
            with open(report) as file:
                cases = list(cases_of(json.load(file)))
        except (OSError, ValueError):
            cases = list(cases_in(done.out))
    stopped = STOPPED.search(done.out)
    if stopped:  # what GoogleTest counts as skipped behind it was not run
        names = [case[0] for case in cases]
        cases = cases[:names.index(stopped[1]) + 1 if stopped[1] in names else len(cases)]
    return done, [row(entry["name"], *case) for case in cases], stopped and stopped[1]


def run_test_binary(programs, entry, seconds):
    """A binary that ends by itself, by a signal or without a report is a failed row of its own. Behind a test that breaks the device the others have their
    turn in another process."""
    done, rows, stopped = run_once(programs, entry, seconds, [])
    names = names_of(programs, entry, seconds) if stopped else []
    for stops in range(1, STOPS + 1):
        rest = names[names.index(stopped) + 1:] if stopped in names else []
        if not rest or programs.clock.over():
            break
        if stops == STOPS:
            rows.append(row(entry["name"], "(the program)", "failed", 0, f"{len(rest)} tests were not run: {stops} processes ended with a broken device"))
            break
        done, more, stopped = run_once(programs, entry, seconds, [f"--gtest_filter={':'.join(rest)}"])
        rows += more
    for r in rows:
        if r["result"] == "failed":  # not in front, where the error is
            r["message"] += f"\nrandom values of --seed {programs.environment.get('TESSERA_TEST_SEED', '0')}"
    failed = any(r["result"] == "failed" for r in rows)
    if done.status not in (0, 77) and (done.late or not failed):
        rows.append(row(entry["name"], "(the program)", "failed", done.seconds, f"{done.text()}\nstatus {done.status}", done.late))
    elif not rows:
        rows.append(row(entry["name"], "(the program)", "failed", done.seconds, f"{done.text()}\nran no test"))
    return rows


def run_whole(programs, entry, seconds):
    """One row for what only its status tells of."""
    script = entry["kind"] == "script"
    command = [sys.executable, programs.test(entry)] if script else [programs.mpiexec(), "-n", str(entry["ranks"]), programs.test(entry)]
    done = programs.run([*command, *entry["arguments"]], seconds * (SCRIPT_TIMES if script else 1), TESSERA=programs.tessera(),
                        MPIEXEC=programs.mpiexec(), PYTHONDONTWRITEBYTECODE="1")
    result = {0: "passed", 77: "skipped"}.get(done.status, "failed")
    return [row(entry["name"], "(the program)", result, done.seconds, "" if done.status == 0 else f"{done.text()}\nstatus {done.status}", done.late)]


def run_test(programs, entry, seconds):
    whole = entry["kind"] == "script" or entry["ranks"] > 1
    return (run_whole if whole else run_test_binary)(programs, entry, seconds)
