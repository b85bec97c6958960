#!/usr/bin/env python3
"""An exception that nobody catches ends the program with a message and status 1, not with a signal and not in silence.
    uncaught.py THROWS       the library that is preloaded"""
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

check = runs.Checks()


def main():
    throws = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        # The name of the host is asked for the status file, before any command runs.
        for what, said in (("error", "thrown by a test"), ("number", "not a std::exception")):
            done = subprocess.run([runs.TESSERA, "--version"], capture_output=True, text=True, stdin=subprocess.DEVNULL,
                                  env={**os.environ, "LD_PRELOAD": throws, "THROW": what, "TESSERA_STATUS_FILE": os.path.join(folder, "status")})
            check(f"status 1 ({what})", done.returncode == 1, f"{done.returncode}: {done.stderr}")
            check(f"the message says what was thrown ({what})", said in done.stderr and "defect of Tessera" in done.stderr, done.stderr)
            check(f"and nothing else is said ({what})", "terminate called" not in done.stderr, done.stderr)
    sys.exit(0 if check.good else 1)


main()
