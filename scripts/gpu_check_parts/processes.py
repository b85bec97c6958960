"""Programs that are started, read while they run, and ended with all that they started themselves."""

import os
import signal
import subprocess
import threading
import time

GRACE = 2.0  # seconds that a program has to end by itself before it is killed


class Clock:
    """The time that this call has, if it has an end at all."""

    RESERVE = 6.0  # seconds kept for ending what runs and writing the report

    def __init__(self, deadline=None):
        self.begin = time.monotonic()
        self.end = None if deadline is None else self.begin + max(0.0, deadline - self.RESERVE)

    def left(self):
        return float("inf") if self.end is None else self.end - time.monotonic()

    def over(self):
        return self.left() <= 0

    def seconds(self):
        return time.monotonic() - self.begin


class Done:
    """How a program ended: its status (124: it was ended because it ran too long), its two outputs apart, and its seconds."""

    def __init__(self, status, out, err, seconds, late=False):
        self.status, self.out, self.err, self.seconds, self.late = status, out, err, seconds, late

    def text(self):
        return "\n".join(part for part in (self.out.rstrip(), self.err.rstrip()) if part)


def below(pid):
    """Every living process that `pid` started, and that those started, wherever they put themselves."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    words = file.read().rpartition(")")[2].split()
                if words[0] not in "ZX":
                    children.setdefault(int(words[1]), []).append(int(name))
            except (OSError, IndexError, ValueError):
                continue  # it has ended meanwhile
    found, todo = [], [pid]
    while todo:
        mine = children.get(todo.pop(), [])
        found += mine
        todo += mine
    return found


def signal_group(group, number):
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        pass


def end(process, grace=GRACE):
    """Ends a program of start(): what stays behind holds memory of the GPU, and time of what is measured next. Launchers of ranks and compilers of
    kernels put their processes into sessions of their own, so the group alone is not all. Without grace it is not asked, but killed."""
    everybody = below(process.pid)
    if grace:
        signal_group(process.pid, signal.SIGTERM)
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            everybody += below(process.pid)
    signal_group(process.pid, signal.SIGKILL)
    for pid in everybody:
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
    process.wait()


def start(command, **options):
    """A program as the head of a group of its own."""
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, **options)


def reader(stream, lines, on_line, faults):
    def read():
        for line in stream:
            lines.append(line)
            try:
                if on_line:
                    on_line(line)
            except Exception as error:  # who reads along must not stop the reading: the program would wait for ever
                faults.append(f"{error!r} at {line}")

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def run(command, seconds, cwd=None, environment=None, on_line=None):
    """Runs a program for at most `seconds`. `on_line` is given each line of its standard output as it comes, in another thread."""
    begin = time.monotonic()
    out, err, late = [], [], False
    try:
        process = start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd, text=True, errors="replace",
                        env={**os.environ, **(environment or {})})
    except OSError as error:
        return Done(127, "", str(error), 0)
    readers = [reader(process.stdout, out, on_line, err), reader(process.stderr, err, None, err)]
    try:
        process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        late = True
    finally:
        if process.poll() is None:
            end(process)
    if not late:
        signal_group(process.pid, signal.SIGKILL)  # helpers that outlived it
    for thread, stream in zip(readers, (process.stdout, process.stderr)):
        thread.join(GRACE)  # not for ever: a stray process may hold the pipe
        if not thread.is_alive():
            stream.close()
    took = time.monotonic() - begin
    if late:
        return Done(124, "".join(out), "".join(err) + f"\nended after {took:.0f} s", took, True)
    return Done(process.returncode, "".join(out), "".join(err), took)
