#!/usr/bin/env python3
"""tessera generate RUN --watch answers lines with the run's newest checkpoint, and reads a newer one before the next answer; a line without room is left out with a word.
    watch.py"""
import os
import subprocess
import sys

import runs

check = runs.Checks()
KEYS = {"model__vocab": 257, "batch__global": 4, "model__layers": 1, "learning_rate__schedule": "constant", "learning_rate__warmup_steps": 0, "checkpoint__every": 3,
        "optimizer__learning_rate": 1e-2}
TEXT = ["--tokens", "6", "--temperature", "0"]


def wanted(checkpoint, line):
    """What the checkpoint's model says after a line."""
    done = subprocess.run([runs.TESSERA, "generate", checkpoint, "--prompt", line, *TEXT], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return done.stdout[len(line):]


def main():
    with runs.Folder() as folder:
        run = folder.run("run")
        done = runs.tessera("generate", folder.path, "--watch", own_process=True)
        check("what is no run is refused", done.returncode == 2 and "--watch takes the folder of a run" in done.stderr, done.stderr)
        folder.train("run", 1, **KEYS, run__steps=3)
        said = os.path.join(folder.path, "said.txt")
        with open(said, "w") as err, subprocess.Popen([runs.TESSERA, "generate", run, "--watch", *TEXT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err) as chat:
            def answer(line, length):
                chat.stdin.write(line.encode() + b"\n")
                chat.stdin.flush()
                return chat.stdout.read(length)

            first = wanted(f"{run}/checkpoints/step-00000003", "In the")
            check("a line is answered by the newest checkpoint", answer("In the", len(first)) == first)
            check("and another one", answer("In the", len(first)) == first)
            folder.train("run", 1, **KEYS, run__steps=12)
            later = wanted(f"{run}/checkpoints/step-00000012", "In the")
            check("a newer checkpoint is read before the next answer", later != first and answer("In the", len(later)) == later)
            chat.stdin.write(b"a line that is far longer than a sequence of the deck\n")
            check("a line without room is left out", answer("In the", len(later)) == later)
            chat.stdin.close()
            check("it ends with its input", chat.wait(runs.HANG_SECONDS) == 0)
        text = open(said).read()
        check("the log says whose answers they are", text.count("answers now come from step 3") == 1 and text.count("answers now come from step 12") == 1, text)
        check("and what was left out", "tokens is skipped: a line may have 1 to 12" in text, text)
    sys.exit(not check.good)


if __name__ == "__main__":
    main()
