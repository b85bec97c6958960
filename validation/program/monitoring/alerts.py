#!/usr/bin/env python3
"""A real Prometheus finds real runs by the lists of targets that they keep, reads their figures, and fires: of a run one of whose ranks is stopped it says that
it hangs, of one that is killed that it is down, of one whose loss is no number that it is so, and of one that ends in good order nothing. Usage: alerts.py"""
import http.server
import os
import signal
import sys
import threading

import server
from server import runs

# The rules as they are, but sooner.
CHANGES = [("> 300 + 10 *", "> 1 + 2 *"), ("for: 2m", "for: 0s")]
# What any run does is enough for these: each rule finds figures of a real run.
LOWERED = [("for: 10m", "for: 0s"), ("for: 15m", "for: 0s"), ("for: 5m", "for: 0s"), ("[1h] offset 30m", "[1m] offset 2s"), ("[1h] offset 5m", "[1m] offset 2s"),
           ("> 1.10 *", "> 0 *"), ("< 0.95 *", "< 1e9 *"), ("[5m]) > 5", "[5m]) > 0"), ("[5m])) > 1", "[5m])) > 0"), ("> 0.05 + 1.5 *", "> 0 *"), ("> 0.1 +", "> 0 *"),
           ("> 10 *", "> 0 *"), ("> 4 * 3600", "> 0"), ("< 2 *", "< 1e12 *")]
FIRED = {"TesseraStepTimeRegression", "TesseraThroughputDrop", "TesseraOptimizerStepSlow", "TesseraAllGatherP99", "TesseraOffloadSlow", "TesseraStraggler",
         "TesseraGradNormSpike", "TesseraCheckpointOld", "TesseraDiskRoom"}  # the others have real causes below
KEYS = {**runs.ENDLESS, "batch__global": 4, "metrics__prometheus": "0", "run__breakdown_every": 1}


def main():
    server.skip_without("prometheus")
    server.skip_without_library()
    check = runs.Checks()
    with runs.Folder() as folder:
        every_rule_finds_figures(check, folder)
        names = ("hangs", "killed", "ends")
        os.makedirs(folder.run("files"))
        files = serve_files(folder.run("files"))
        node_exporter = f"127.0.0.1:{files.server_address[1]}"
        targets = [f"{folder.run(name)}/prometheus.json" for name in (*names, "diverges")]
        with server.Prometheus(folder.path, targets, CHANGES, node_exporter=node_exporter) as prometheus:
            going = {name: folder.start(name, 2 if name == "hangs" else 1, **KEYS) for name in names}
            try:
                follow(check, prometheus, folder, going)
                end_by_no_number(check, prometheus, folder, node_exporter)
            finally:
                for run in going.values():
                    run.signal_ranks(signal.SIGCONT)
                    run.kill()
                files.shutdown()
    sys.exit(not check.good)


def every_rule_finds_figures(check, folder):
    run = folder.start("all", 2, **KEYS, zero__stage=3, zero__param_persistence_threshold=0, zero__offload_optimizer__device="nvme")
    try:
        run.wait_for_step(2)
        with server.Prometheus(folder.path, [f"{run.folder}/prometheus.json"], LOWERED, node_exporter=server.address_of(run.folder)) as prometheus:
            fired = set()

            def all_fire():
                fired.update(alert for alert, _ in prometheus.firing())
                return run.ended() or FIRED <= fired
            runs.wait_until(all_fire, "all alerts", pause=0.2)
            check(f"{len(FIRED)} rules find figures of a run, and fire where they ask for less", FIRED <= fired, f"{FIRED - fired}\n{run.output()}")
    finally:
        run.kill()


def serve_files(folder):
    """As a node exporter does: the files of a folder for it, at an address of the loopback."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802 pylint: disable=invalid-name
            text = "".join(open(os.path.join(folder, name)).read() for name in sorted(os.listdir(folder)) if name.endswith(".prom"))
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *unused):  # pylint: disable=arguments-differ
            pass

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    return served


def end_by_no_number(check, prometheus, folder, node_exporter):
    """In fp16 with a scale that overflows in each step; who scrapes the run comes too late, a node exporter does not."""
    folder.train("diverges", 1, expect=8, own_process=True, **KEYS, precision__compute="fp16", precision__loss_scale__fixed=2.0**26,
                 metrics__prometheus_folder=folder.run("files"))
    check("a failure leaves its file", [name.split("-")[1] for name in os.listdir(folder.run("files"))] == ["diverges"], str(os.listdir(folder.run("files"))))
    text = server.fetch("http://" + node_exporter)
    says = any(name == "tessera_not_finite" and value == 1 for (name, _), value in server.samples_of(text).items())
    check("which says how it ended", says, text)
    if not says:
        return
    runs.wait_until(lambda: ("TesseraNotFinite", "diverges") in prometheus.firing(), f"TesseraNotFinite: {prometheus.log()}", pause=0.2)
    check("of a run whose loss is no number TesseraNotFinite fires", True)
    runs.wait_until(lambda: ("TesseraRunDown", "diverges") in prometheus.firing(), "TesseraRunDown of it", pause=0.2)
    check("and TesseraRunDown, by its list of targets", True)


def follow(check, prometheus, folder, going):
    for name, run in going.items():
        run.wait_for_step(3)
        runs.wait_until(lambda: prometheus.values("tessera_step").get(name, 0) >= 3, f"figures of {name}\n{prometheus.log()}", pause=0.2)  # noqa: B023 pylint: disable=cell-var-from-loop
    check("Prometheus has the figures of all runs", set(prometheus.values("tessera_loss")) == set(going))
    ports = {name: server.address_of(run.folder) for name, run in going.items()}
    check("runs of a node listen at ports of their own", len(set(ports.values())) == len(going), str(ports))
    going["ends"].signal_ranks(signal.SIGTERM)
    status = going["ends"].wait()
    check("a run that is asked to stop ends with 75", status == 75, going["ends"].output())
    check("and takes its list of targets away", not os.path.exists(f"{folder.run('ends')}/prometheus.json"))
    runs.wait_until(lambda: "ends" not in (prometheus.targets() or ["ends"]), "the target to go", pause=0.2)
    going["killed"].kill()
    check("a kill leaves the list", os.path.exists(f"{folder.run('killed')}/prometheus.json"))
    runs.wait_until(lambda: ("TesseraRunDown", "killed") in prometheus.firing(), "TesseraRunDown", pause=0.2)
    check("of a run that was killed TesseraRunDown fires", True)
    going["hangs"].signal_ranks(signal.SIGSTOP, which=1)
    runs.wait_until(lambda: ("TesseraHang", "hangs") in prometheus.firing(), "TesseraHang", pause=0.2)
    check("of a run one of whose ranks is stopped TesseraHang fires", True)
    check("while its rank 0 still answers", "tessera_last_row_time_seconds" in server.fetch(f"http://{ports['hangs']}/metrics"))
    going["hangs"].signal_ranks(signal.SIGCONT, which=1)
    runs.wait_until(lambda: ("TesseraHang", "hangs") not in prometheus.firing(), "TesseraHang to end", pause=0.2)
    check("and no more when that goes on", True)
    check("of the run that ended in good order nothing fires", not any(run == "ends" for _, run in prometheus.firing()), str(prometheus.firing()))


if __name__ == "__main__":
    main()
