#!/usr/bin/env python3
"""Clients that hang or flood cost a run nothing but the cores that nobody else wants: its bits are those of a run without them, its threads and connections stay
bounded, and it ends while they are still at it. Usage: scrapers.py"""
import os
import re
import signal
import socket
import sys
import threading

import server
from server import runs

KEYS = {"run__reproducible": True, "batch__global": 8, "run__steps": 40, "checkpoint__every": 0}
SERVER_THREADS = 4 + 1  # num_threads in io/metrics/prometheus.cpp, and the one that listens
CONNECTIONS = 4 + 8 + 1  # that the endpoint holds: with those who answer, in a queue, and about to come there


def hang(address, how):
    """An open conversation in which the client says no more, or does not listen."""
    host, port = address.split(":")
    client = socket.create_connection((host, int(port)), timeout=5)
    try:
        client.sendall({"silent": b"", "half": b"GET /metrics HT", "deaf": b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 2000}[how])
    except OSError:
        pass
    return client


def flood(address, ends):
    while not ends.is_set():
        try:
            server.fetch(f"http://{address}/metrics", timeout=5)
        except (OSError, ValueError):
            pass


def server_threads(pid):
    """The endpoint's threads, by the name that CivetWeb gives them. Others belong to the training, which may start some at any time."""
    count = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/comm") as name:
                count += name.read().startswith("civetweb")
        except OSError:
            pass  # the thread has ended
    return count


def sockets_of(pid):
    count = 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            count += os.readlink(f"/proc/{pid}/fd/{name}").startswith("socket:")
        except OSError:
            pass
    return count


def check_beside(check, folder):
    folder.train("alone", ranks=2, own_process=True, **KEYS)
    run = folder.start("beside", 2, **KEYS, metrics__prometheus="0", metrics__prometheus_folder=folder.path)
    address = server.address_of(run.folder)
    rank_0 = next(pid for pid in run.ranks() if listens(pid, int(address.rpartition(":")[2])))
    server.fetch(f"http://{address}/metrics")  # an answer: some of the server's threads have run, and have their names
    before = sockets_of(rank_0)
    ends, clients, most = threading.Event(), [], [0, 0]
    flooding = [threading.Thread(target=flood, args=(address, ends), daemon=True) for _ in range(4)]
    for thread in flooding:
        thread.start()
    try:
        while not run.ended():
            try:
                clients.append(hang(address, ("silent", "half", "deaf")[len(clients) % 3]))
            except OSError:
                pass  # the queue is full, or the run has ended
            try:
                most = [max(most[0], server_threads(rank_0)), max(most[1], sockets_of(rank_0))]
            except OSError:
                break
            if len(clients) > 60:
                clients.pop(0).close()
        status = run.wait()  # while clients still hang and flood
    finally:
        ends.set()
        for thread in flooding:
            thread.join()
        for client in clients:
            client.close()
    check(f"the run ends with 0 beside {len(clients)} clients that hang, and four that flood", status == 0, run.output())
    check("its steps have the same bits as without", folder.losses("beside") == folder.losses("alone") and len(folder.losses("beside")) == KEYS["run__steps"])
    check("and its state", folder.hashes("beside") == folder.hashes("alone"))
    check(f"threads are bounded ({most[0]} of {SERVER_THREADS})", 0 < most[0] <= SERVER_THREADS)
    check(f"connections are bounded ({most[1]} after {before})", most[1] <= before + CONNECTIONS)
    left = [name for name in os.listdir(folder.path) if ".prom" in name] + [name for name in os.listdir(run.folder) if "prometheus" in name]
    check("a good end leaves neither file", not left, str(left))


def check_next_start(check, folder):
    """At the port of the start before, whose conversations the system has not forgotten yet."""
    port = server.free_port()
    keys = {**KEYS, "metrics__prometheus": f"127.0.0.1:{port}", **runs.ENDLESS}
    for start in (1, 2):
        run = folder.start("again", 1, **keys)
        address = server.address_of(run.folder)
        scraped = server.fetch(f"http://{address}/metrics")
        check(f"start {start} listens at the port that was asked for", address == f"127.0.0.1:{port}" and "tessera_info" in scraped, f"{address}\n{scraped}")
        run.wait_for_step(2)
        if start == 1:
            run.signal_ranks(signal.SIGTERM)
            check("it ends in good order", run.wait() == 75, run.output())
        else:
            run.kill()


def listens(pid, port):
    """Whether the process has a socket that listens at this port."""
    with open("/proc/net/tcp") as table:
        inodes = {line.split()[9] for line in table.read().splitlines()[1:] if line.split()[3] == "0A" and int(line.split()[1].split(":")[1], 16) == port}
    names = [os.path.join(f"/proc/{pid}/fd", name) for name in os.listdir(f"/proc/{pid}/fd")]
    return any(os.path.exists(name) and os.readlink(name) in {f"socket:[{inode}]" for inode in inodes} for name in names)


def check_refusals(check, folder):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = runs.tessera(*folder.arguments("taken", metrics__prometheus=f"{port}"), ranks=2, own_process=True)
    words = f'metrics.prometheus = "127.0.0.1:{port}": this address cannot be used'
    check("a port in use ends the start with 6, and a sentence of what to do", done.returncode == 6 and words in done.stderr and "Choose another port" in done.stderr, done.stderr)
    check("one rank says it, once", len(re.findall("this address cannot be used", done.stderr)) == 1, done.stderr)
    check("and nothing is left of it", not os.path.exists(folder.run("taken")))
    done = runs.tessera(*folder.arguments("elsewhere", metrics__prometheus_folder=f"{folder.path}/none"))
    check("a folder that is none is refused", done.returncode == 6 and "metrics.prometheus_folder" in done.stderr, done.stderr)
    for address in ("node001:9400", "9400s", "127.0.0.1:99999"):
        done = runs.tessera(*folder.arguments("address", metrics__prometheus=address))
        check(f"{address} is not an address", done.returncode == 2 and "metrics.prometheus" in done.stderr, done.stderr)


def main():
    server.skip_without_library()
    check = runs.Checks()
    with runs.Folder() as folder:
        check_refusals(check, folder)
        check_next_start(check, folder)
        check_beside(check, folder)
    sys.exit(not check.good)


if __name__ == "__main__":
    main()
