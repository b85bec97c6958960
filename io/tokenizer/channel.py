# What programs of Python that the binary starts have in common: each is this text and its own, which a build carries, with a socket as standard input. A
# request is four letters, the length of what follows (uint64, little-endian) and that; so is its answer, whose letters are "done" or "fail". The argument of
# the program says how many bytes of memory it may take, 0 for any.
import sys

sys.path = [folder for folder in sys.path if folder]  # what lies in the folder of the run is not ours to import

import json
import os
import resource
import select
import signal
import struct
import threading
import time

CHANNEL = os.dup(0)
os.dup2(2, 1)  # a library that prints must not print into an answer
signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started us decides: we end with the socket


def end_with_the_socket():
    """Who started us and was killed cannot end us: where we do not read the socket's end ourselves, being busy for ever, this does, with all that we started."""
    poll = select.poll()
    poll.register(CHANNEL, 0)  # a socket whose other side is gone is told of always
    poll.poll()
    time.sleep(5)
    if os.getpgrp() != os.getsid(0):
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


threading.Thread(target=end_with_the_socket, daemon=True).start()


class Fault(Exception):
    """What the user is told. `kind` becomes the exit status."""

    def __init__(self, message, kind="data"):
        super().__init__(message)
        self.kind = kind


def require(package, name, error, wanted):
    """`wanted`: what pip is to install."""
    if package is None:
        raise Fault(f"{sys.executable} cannot import {name} ({error}). Install it there: {sys.executable} -m pip install {wanted}; or run "
                    f"scripts/setup "
                    "--tokenizers; or let TESSERA_PYTHON name a Python that has it.", "environment")


def receive(count):
    data = bytearray(count)
    view = memoryview(data)
    while count:
        got = os.readv(CHANNEL, [view[len(data) - count :]])
        if got == 0:
            sys.exit(0)
        count -= got
    return data


def send(word, payload):
    view = memoryview(word + struct.pack("<Q", len(payload)) + payload)
    while view:
        view = view[os.write(CHANNEL, view) :]


class Reader:
    """Numbers and texts of a request, front to back."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, form="<I"):
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def text(self):
        length = self.number()
        self.at += length
        return self.data[self.at - length : self.at].decode()


def refusal(kind, message):
    """As a paragraph of what a terminal shows, and no longer than somebody reads: it may quote what a damaged file holds."""
    words = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(message.split()))
    if len(words) > 2400:
        words = f"{words[:1500]} ... {words[-800:]}"
    return json.dumps({"kind": kind, "message": words}).encode()


def defect(error):
    at = error.__traceback__
    while at.tb_next:
        at = at.tb_next
    place = f"{os.path.basename(at.tb_frame.f_code.co_filename)}:{at.tb_lineno}"
    return f"{type(error).__name__}: {error} (in {sys.executable}, {place}). This is a defect of Tessera; please report it with the files."


def limit_memory(most):
    """Of what is written to: libraries reserve addresses that they never use."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if most and (hard == resource.RLIM_INFINITY or most < hard):
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def no_memory(most):
    limit = f": it may take {most / 2**30:.3g} GiB, or the system has no more" if most else ""
    return (f"{sys.executable} got no more memory{limit}. Look for a very long text, also one that a chat template makes; or use fewer "
            f"--workers, a higher "
            "--worker-memory, or a machine with more.")


def serve(operations, most=0):
    """Answers requests until the socket is closed. `most`: the bytes of memory that this process may take, 0 for any."""
    limit_memory(most)
    while True:
        head = receive(12)
        request = Reader(receive(struct.unpack("<Q", head[4:])[0]))
        try:
            word, answer = b"done", operations[bytes(head[:4])](request)
        except Fault as fault:
            word, answer = b"fail", refusal(fault.kind, str(fault))
        except MemoryError:
            word, answer = b"fail", refusal("environment", no_memory(most))
        except Exception as error:
            word, answer = b"fail", refusal("internal", defect(error))
        send(word, answer)
