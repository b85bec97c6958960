#!/usr/bin/env python3
"""Tries folders of a model's tokenizer on the worker that reads them (io/tokenizer/worker.py), each made of others by what they reach in it: it must refuse
them in a paragraph that names the file, or take them whole, without a traceback, a crash, a hang or gigabytes.
    fuzz_tokenizer.py [--runs 600] [--seed 1] [--keep FOLDER]       FOLDER: where inputs are kept that ended otherwise (the working directory)
    fuzz_tokenizer.py --again FOLDER                                tries one of those again
With TESSERA_TEST_FULL=1 100,000 inputs. Needs the Python of scripts/setup --tokenizers. A process tries the inputs, and this one watches it, since no signal
of Python's ends a library that hangs: an input has SECONDS of the processor."""
import argparse
import hashlib
import mmap
import os
import pickle
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time

SECONDS = 1.0
WALL_SECONDS = 120  # of a busy machine, or of a process that waits for ever
BYTES = 2 << 30  # of address space, beside what the libraries take
STATUS = struct.Struct("<qqqq")  # inputs begun, inputs that reach more, edges of the worker, kinds of messages
MOST_FINDINGS = 20


def write_input(folder, files):
    """Only what differs from what lies there."""
    for name in os.listdir(folder):
        if name not in files:
            os.remove(os.path.join(folder, name))
    for name, data in files.items():
        with open(os.path.join(folder, name), "wb") as out:
            out.write(data)


def read_input(folder):
    files = {}
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            files[name] = file.read()
    return files


def limit_memory():
    with open("/proc/self/statm", encoding="ascii") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + BYTES, resource.RLIM_INFINITY))


class Trials:
    """What the watched process does: inputs number `first` and on, in the working directory, where `status` and `current` say how far it is."""

    def __init__(self, options):
        import tokenizer_cases
        import tokenizer_inputs
        import tokenizer_trial

        self.cases, self.inputs, self.trial, self.options = tokenizer_cases, tokenizer_inputs, tokenizer_trial, options
        with open("status", "r+b") as file:
            self.status = mmap.mmap(file.fileno(), STATUS.size)
        os.makedirs(tokenizer_trial.FOLDER, exist_ok=True)
        self.worker = tokenizer_trial.Worker()
        self.corpus, self.taken, self.refused, self.begun = [], [], [], -1
        limit_memory()

    def report(self):
        self.status[:] = STATUS.pack(self.begun, len(self.corpus), len(self.worker.edges), len(self.worker.messages))

    def attempt(self, files):
        """Puts it into the corpus where it reaches more."""
        before = len(self.worker.edges) + len(self.worker.messages)
        write_input(self.trial.FOLDER, files)
        taken = found = None
        try:
            taken = self.trial.try_input(self.worker, files)
        except self.trial.Finding as finding:
            found = str(finding)
        if len(self.worker.edges) + len(self.worker.messages) > before:
            self.corpus.append(files)
            (self.taken if taken else self.refused).append(files)
        return found

    def restore(self):
        """What earlier processes found."""
        with open("corpus", "rb") as file:
            while file.peek(1):
                self.attempt(pickle.load(file))

    def next_input(self, number, seeds):
        if number < len(seeds):
            return seeds[number]
        draw = random.Random(f"{self.options.seed} {number}")
        some = self.refused if self.refused and draw.random() < 0.15 else self.taken  # others are mostly refused as what they were made of
        return self.inputs.changed(draw.choice(some[-draw.choice((20, 200, 10**6)) :]), draw, self.corpus)

    def run(self, first):
        cases = list(self.cases.cases())
        seeds = [files for files, _ in cases] + list(self.inputs.seeds())
        self.restore()
        for self.begun in range(first, self.options.runs):
            files, corpus = self.next_input(self.begun, seeds), len(self.corpus)
            with open("current", "wb") as out:
                pickle.dump(files, out)
            self.report()
            found = self.attempt(files)
            if self.begun < len(seeds) and not found:
                found = self.cases.check(self.worker.said, cases[self.begun][1] if self.begun < len(cases) else (None, "", ""))
            if found:
                with open(f"finding-{self.begun}", "wb") as out:
                    pickle.dump((found, files), out)
            if len(self.corpus) > corpus:
                with open("corpus", "ab") as out:
                    pickle.dump(files, out)
        self.begun = self.options.runs
        self.report()


def processor_seconds(process):
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            words = file.read().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return 0.0


def watch(child, status):
    """Waits for the end of a process that tries inputs. Why it had to be ended, or "". """
    number, spent, since = None, 0.0, 0.0
    while True:
        try:
            child.wait(0.05)
            return ""
        except subprocess.TimeoutExpired:
            pass
        begun = STATUS.unpack(status[:])[0]
        now = processor_seconds(child.pid)
        if begun != number:
            number, spent, since = begun, now, time.monotonic()
        elif begun >= 0 and (now - spent > SECONDS or time.monotonic() - since > WALL_SECONDS):
            child.kill()
            child.wait()
            return f"it runs for more than {SECONDS} s" if now - spent > SECONDS else f"it waits for more than {WALL_SECONDS} s"


class Findings:
    """Those of each kind once, as folders below `folder`, as soon as they are known."""

    def __init__(self, folder):
        self.folder, self.kinds, self.count = folder, set(), 0

    def add(self, what, files):
        from tokenizer_trial import kind_of

        self.count += 1
        if kind_of(what) in self.kinds:
            return
        self.kinds.add(kind_of(what))
        path = os.path.join(self.folder, "found-tokenizer-" + hashlib.sha256(pickle.dumps(files)).hexdigest()[:8])
        os.makedirs(path, exist_ok=True)
        write_input(path, files)
        print(f"FAIL an input is kept as {path}: {what[:1500]}", flush=True)

    def add_files(self, work):
        """What a process has left."""
        for name in sorted(os.listdir(work)):
            if name.startswith("finding-"):
                self.add(*read_pickle(f"{work}/{name}"))
                os.remove(f"{work}/{name}")


def read_pickle(path):
    with open(path, "rb") as file:
        return pickle.load(file)


def start(options, work, first):
    """A process that tries inputs, and what must stay open as long as it may run: it ends with the other side of its standard input, as a worker with its
    socket."""
    ours, theirs = os.pipe()
    with open(f"{work}/said", "wb") as said:
        child = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--first", str(first), "--runs", str(options.runs), "--seed", str(options.seed)],
                                 cwd=work, stdin=ours, stdout=said, stderr=said, env={**os.environ, "PYTHONHASHSEED": "0", "RUST_BACKTRACE": "0"},
                                 preexec_fn=os.setpgrp)
    os.close(ours)
    return child, theirs


def try_inputs(options, work, found):
    """Processes one after the other until all inputs are tried."""
    with open(f"{work}/status", "w+b") as file:
        file.write(STATUS.pack(-1, 0, 0, 0))
        file.flush()
        status = mmap.mmap(file.fileno(), STATUS.size)
    open(f"{work}/corpus", "wb").close()
    begun = 0
    while begun < options.runs and found.count < MOST_FINDINGS:
        child, side = start(options, work, begun)
        why = watch(child, status)
        os.close(side)
        found.add_files(work)
        begun = STATUS.unpack(status[:])[0]
        if begun < options.runs:
            with open(f"{work}/said", encoding="utf-8", errors="replace") as said:
                words = said.read()[-2000:]
            if begun < 0:
                sys.exit(f"FAIL the process that tries inputs has not begun: {why or child.returncode}: {words}")
            files, what = read_pickle(f"{work}/current"), why or f"it ends the process with {child.returncode}: {words}"
            if happens_alone(files):
                found.add(what, files)
            else:  # of thousands before it, or of the machine
                print(f"input {begun} does not do it alone: {what[:60]}", flush=True)
            begun += 1
            status[:8] = struct.pack("<q", -1)
    return STATUS.unpack(status[:])


def happens_alone(files):
    """Whether an input ends a process of its own, or works for too long there."""
    with tempfile.TemporaryDirectory(prefix="tessera-fuzz-") as folder:
        write_input(folder, files)
        ours, theirs = os.pipe()  # open as long as it may run
        try:
            done = subprocess.run([sys.executable, os.path.abspath(__file__), "--again", folder], stdin=ours, capture_output=True, text=True, errors="replace",
                                  timeout=WALL_SECONDS, preexec_fn=os.setpgrp)
        except subprocess.TimeoutExpired:
            return True
        finally:
            os.close(ours)
            os.close(theirs)
    return done.returncode != 0 or "FAIL" in done.stdout


def try_again(options):
    from tokenizer_trial import FOLDER, Finding, Worker, try_input

    files = read_input(options.again)
    with tempfile.TemporaryDirectory(prefix="tessera-fuzz-") as work:
        os.makedirs(os.path.join(work, FOLDER))
        os.chdir(work)
        write_input(FOLDER, files)
        worker = Worker()
        limit_memory()
        begun = time.process_time()
        try:
            try_input(worker, files)
        except Finding as finding:
            print(f"FAIL {finding}")
        if time.process_time() - begun > SECONDS:
            print(f"FAIL it works for {time.process_time() - begun:.1f} s")
        print("\n".join(f"{operation.decode()}, {kind}: {message}" for operation, kind, message in worker.said))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100000 if os.environ.get("TESSERA_TEST_FULL") else 600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", default=os.getcwd())
    parser.add_argument("--again")
    parser.add_argument("--first", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.again:
        try_again(options)
        return
    if options.first is not None:
        Trials(options).run(options.first)
        return
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tessera-fuzz-") as work:
        found = Findings(options.keep)
        _, corpus, edges, messages = try_inputs(options, work, found)
    print(f"{options.runs} inputs in {time.monotonic() - begun:.0f} s: {corpus} that reach more, {edges} pairs of lines, {messages} kinds of refusals, "
          f"{found.count} findings")
    sys.exit(1 if found.count or corpus < 5 else 0)


if __name__ == "__main__":
    main()
