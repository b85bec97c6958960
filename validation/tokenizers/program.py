"""The program under test, with a Python that has the packages: the one that runs this; and lines of JSON for it."""

import json
import os
import subprocess
import sys

TESSERA = os.environ.get("TESSERA", "build/host/tessera")


def fail(message):
    print(f"FAIL {message}", file=sys.stderr)
    sys.exit(1)


def run(*arguments, **environment):
    """Status, output and errors."""
    done = subprocess.run([TESSERA, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=1200,
                          env={**os.environ, "TESSERA_PYTHON": sys.executable, **environment})
    return done.returncode, done.stdout, done.stderr


def tessera(*arguments):
    status, output, errors = run(*arguments)
    if status:
        fail(f"tessera {' '.join(arguments)}: status {status}\n{errors}")
    return output


def write_lines(path, objects):
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(one, ensure_ascii=False) + "\n" for one in objects)
