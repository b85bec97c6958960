"""The report: what was run, with what result, what was measured. Written whole after every row, so that a call that is killed leaves what it had."""

import json
import os
import sys

KEPT = 8000  # characters of output that a failure keeps: its beginning, where errors begin, and its end
RESULTS = ("passed", "failed", "skipped", "unfinished")


def clipped(text, most=KEPT):
    """Head and tail of a text that is too long."""
    if len(text) <= most:
        return text
    left_out = f"\n[... {len(text) - most} characters ...]\n"
    return text[:most // 2] + left_out + text[-(most // 2):]


def row(group, name, result, seconds, message="", late=False):
    """`late`: it was ended because it ran too long."""
    made = {"group": group, "name": name, "result": result, "seconds": round(seconds, 3), "message": clipped(message)}
    if late:
        made["late"] = True
    return made


def json_lines(text):
    """The JSON objects among the lines of a text; what else a program says there is passed over."""
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                yield json.loads(line)
            except ValueError:
                continue


class Report:
    """Rows of tests and of benchmarks, each of a job, and which jobs have come to their end."""

    def __init__(self, path, about):
        self.path, self.about = path, about
        self.planned, self.finished, self.tests, self.benchmarks, self.calls = [], [], [], [], []
        self.job, self.before = None, []

    def identity(self):
        """What the reports of several calls must have in common: the kind of GPU and the program, to the byte."""
        device = self.about.get("device", {})
        return device.get("gpu"), device.get("compute_capability"), self.about.get("program")

    @classmethod
    def read(cls, path):
        try:
            with open(path) as file:
                kept = json.load(file)
            report = cls(path, {key: kept[key] for key in ("device", "driver", "emulated", "version", "program")})
            for key in ("planned", "finished", "tests", "benchmarks", "calls"):
                setattr(report, key, kept[key])
            return report
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise SystemExit(f"gpu_check: {path} is not a report that can be continued: {error!r}")

    def take(self, other):
        """Adds another call's report. Of a job that both have, the one that has come to its end counts; of two such, the other's, which is the later."""
        if other.identity() != self.identity():
            raise SystemExit(f"gpu_check: {other.path} is of another GPU or another program ({other.identity()}, here {self.identity()}); only reports of one GPU and one program can be merged")
        for key in other.planned:
            if key in self.finished and key not in other.finished:
                continue
            self.forget(key)
            self.tests += [r for r in other.tests if r["job"] == key]
            self.benchmarks += [r for r in other.benchmarks if r["job"] == key]
            self.finished += [key] if key in other.finished else []
        self.planned += [key for key in other.planned if key not in self.planned]
        self.calls = other.calls + self.calls

    def forget(self, key):
        self.tests = [r for r in self.tests if r["job"] != key]
        self.benchmarks = [r for r in self.benchmarks if r["job"] != key]
        self.finished = [k for k in self.finished if k != key]

    def begin(self, key):
        """`before` keeps the numbers that an earlier call, cut within the job, left of it."""
        self.before = [r for r in self.benchmarks if r["job"] == key]
        self.forget(key)
        self.job = key

    def add(self, *rows):
        self.tests += [{**r, "job": self.job} for r in rows]
        self.write()

    def measure(self, *rows):
        """A number that came before under the same name, in the same job, is replaced."""
        names = {r["name"] for r in rows}
        self.benchmarks = [r for r in self.benchmarks if r["job"] != self.job or r["name"] not in names] + [{**r, "job": self.job} for r in rows]
        self.write()

    def end(self, cut):
        """The job is over; `cut`: because the call's time was, so what was late then says nothing, and the job is to be run again."""
        late = [r for r in self.tests if r["job"] == self.job and r.get("late")] if cut else []
        for r in late:
            r["result"] = "unfinished"
        if not late:
            self.finished.append(self.job)
        self.write()

    def of_job(self):
        return [r for r in self.tests if r["job"] == self.job], [r for r in self.benchmarks if r["job"] == self.job]

    def left_over(self):
        return [key for key in self.planned if key not in self.finished]

    def totals(self):
        return {result: sum(r["result"] == result for r in self.tests) for result in RESULTS}

    def verdict(self):
        totals = self.totals()
        if totals["failed"]:
            return "failed"
        if self.left_over():
            return "unfinished"
        return "passed" if totals["passed"] else "failed"

    def write(self):
        text = json.dumps({"verdict": self.verdict(), "totals": self.totals(), "left_over": self.left_over(), **self.about, "calls": self.calls,
                           "tests": self.tests, "benchmarks": self.benchmarks, "planned": self.planned, "finished": self.finished}, indent=1)
        partial = f"{self.path}.partial"
        with open(partial, "w") as file:
            file.write(text + "\n")
        os.replace(partial, self.path)

    def status(self):
        return {"passed": 0, "failed": 1, "unfinished": 3}[self.verdict()]

    def show_verdict(self):
        totals = self.totals()
        print(f"{self.verdict()}: {', '.join(f'{totals[result]} {result}' for result in RESULTS)}; {self.path}")
        if self.left_over():
            print(f"not run to the end: {', '.join(self.left_over())}\ncontinue with --continue {self.path}")
        sys.stdout.flush()


def show(rows):
    """A line for each group, and what failed."""
    for group in dict.fromkeys(r["group"] for r in rows):
        mine = [r for r in rows if r["group"] == group]
        count = {result: sum(r["result"] == result for r in mine) for result in RESULTS}
        print(f"{group:36} {count['passed']:5} passed {count['failed']:5} failed {count['skipped']:5} skipped {sum(r['seconds'] for r in mine):9.1f} s"
              + (f" {count['unfinished']:5} unfinished" if count["unfinished"] else ""), flush=True)
        for r in mine:
            if r["result"] == "failed":
                print(f"  FAILED {r['name']}\n    " + r["message"].strip().replace("\n", "\n    "), flush=True)
            elif r["result"] == "skipped" and r["message"]:
                print(f"  skipped {r['name']}: {r['message'].strip().splitlines()[-1]}", flush=True)
            elif r["result"] == "passed" and r["message"]:
                print(f"  {r['name']}: {r['message']}", flush=True)


# Key of a target in a row: (what is compared, how it reads, when it is met).
TARGETS = {"target": ("share", "target {:.0%}", lambda value, wanted: value >= wanted),
           "below": ("value", "target below {} {unit}", lambda value, wanted: value < wanted),
           "at_most": ("value", "target at most {} {unit}", lambda value, wanted: value <= wanted),
           "at_least": ("value", "target at least {} {unit}", lambda value, wanted: value >= wanted)}


def show_benchmarks(rows, emulated):
    for r in rows:
        if r.get("value") is None:
            line = f"{r['name']:60} {r.get('note', 'not measured')}"
        else:
            line = f"{r['name']:60} {r['value']:10.2f} {r['unit']}"
        if "share" in r:
            line += f"  {100 * r['share']:6.1f} % of {r['limit']}"
        for key, (compared, words, met) in TARGETS.items():
            if key in r and r.get(compared) is not None:
                # A lower bound can miss such a target, but not meet it.
                good = "not decided" if r.get("lower_bound") else "met"
                verdict = "emulated, so it means nothing" if emulated else good if met(r[compared], r[key]) else "missed"
                line += f" ({words.format(r[key], unit=r['unit'])}: {verdict})"
        if r.get("value") is not None and r.get("note"):
            line += f"; {r['note']}"
        print(line, flush=True)
