"""A Prometheus of a test's own, on the loopback, and what tests ask it and runs."""
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402 pylint: disable=wrong-import-position

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../.."))
MONITORING = os.path.join(ROOT, "slurm", "monitoring")


def skip_without(program):
    if not shutil.which(program):
        print(f"skipped: there is no {program}; scripts/setup installs it", file=sys.stderr)
        sys.exit(77)


def skip_without_library():
    """Where the build has no prometheus-cpp."""
    if "prometheus-cpp none" in subprocess.run([runs.TESSERA, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout:
        print("skipped: this build has no prometheus-cpp", file=sys.stderr)
        sys.exit(77)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fetch(url, timeout=60):
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read().decode()


def address_of(run_folder):
    """HOST:PORT of a run that has begun its steps; waits for that."""
    path = os.path.join(run_folder, "prometheus.json")
    runs.wait_until(lambda: os.path.exists(path), path, pause=0.01)
    with open(path) as file:
        return json.load(file)[0]["targets"][0]


def samples_of(text):
    """{(name, labels as they stand): value}"""
    found = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, labels, value = re.fullmatch(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})? (\S+)", line).groups()
            found[name, labels or ""] = float(value)
    return found


class Prometheus:
    """With the project's rules, which ask sooner: `changes` are (text, text in its place) of alerts.yml, all of which must be there."""

    def __init__(self, folder, targets, changes, node_exporter):
        self.folder = tempfile.mkdtemp(prefix="prometheus-", dir=folder)
        with open(os.path.join(MONITORING, "alerts.yml")) as file:
            rules = file.read()
        for old, new in changes:
            if old not in rules:
                sys.exit(f"FAIL alerts.yml has no {old!r}")
            rules = rules.replace(old, new)
        with open(os.path.join(MONITORING, "prometheus.yml")) as file:
            config = file.read()
        config = re.sub(r"(scrape|evaluation)_interval: 15s", r"\1_interval: 1s", config).replace("refresh_interval: 30s", "refresh_interval: 1s")
        lines = "".join(f"          - {target}\n" for target in targets)
        config = re.sub(r"          - runs/quickstart/prometheus.json\n", lambda _: lines, config)
        config += f'  - job_name: node\n    honor_labels: true\n    static_configs:\n      - targets: ["{node_exporter}"]\n'
        for name, text in (("alerts.yml", rules), ("prometheus.yml", config)):
            with open(os.path.join(self.folder, name), "w") as file:
                file.write(text)
        self.address = f"127.0.0.1:{free_port()}"
        with open(os.path.join(self.folder, "log"), "w") as log:
            self.process = subprocess.Popen(
                ["prometheus", f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/data", f"--web.listen-address={self.address}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def log(self):
        with open(os.path.join(self.folder, "log"), errors="replace") as file:
            return file.read()

    def ask(self, path, **parameters):
        """The data of an answer; None while the server does not answer yet."""
        if self.process.poll() is not None:
            sys.exit(f"FAIL prometheus ended\n{self.log()}")
        try:
            return json.loads(fetch(f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"))["data"]
        except (urllib.error.URLError, OSError, ValueError):
            return None

    def values(self, query):
        """{run: value} of an expression."""
        data = self.ask("query", query=query)
        return {sample["metric"].get("run", ""): float(sample["value"][1]) for sample in data["result"]} if data else {}

    def firing(self):
        """{(alert, run)}"""
        data = self.ask("alerts")
        return {(alert["labels"]["alertname"], alert["labels"].get("run", "")) for alert in data["alerts"] if alert["state"] == "firing"} if data else set()

    def targets(self):
        data = self.ask("targets")
        return [target["labels"].get("run", "") for target in data["activeTargets"]] if data else None
