#!/usr/bin/env python3
"""Alerts, dashboard and pages name figures that a run has, and a run shows none that the page of figures does not name; promtool takes the rules, and each fires
where it should. Usage: names.py [--grafana]       --grafana: the dashboard alone, as Grafana's own types read it (PyPI's grafana-foundation-sdk)"""
import glob
import json
import os
import re
import subprocess
import sys

import server
from server import MONITORING, ROOT, runs

WITH_A_PROFILE = {"tessera_mfu_ratio", "tessera_mfu_causal_ratio"}  # of runs with run.machine
WORDS = {"by", "without", "on", "ignoring", "group_left", "group_right", "unless", "or", "and", "offset", "bool"}
KEYS = {"run__steps": 4, "batch__global": 4, "model__experts": 2, "model__experts_per_token": 1, "checkpoint__every": 2, "evaluate__every": 2, "evaluate__batches": 1,
        "run__breakdown_every": 1}


def read(*path):
    with open(os.path.join(*path)) as file:
        return file.read()


def names_in(expression):
    """Metrics of an expression: words that are no function, no label, no text and no duration."""
    bare = re.sub(r"\"[^\"]*\"|\[[^\]]*\]|\{[^}]*\}", " ", expression)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    return {word for word in re.findall(r"\b[a-zA-Z_:][a-zA-Z0-9_:]*\b(?!\s*\()", bare) if word not in WORDS}


def labels_in(expression):
    return set(re.findall(r"[{,]\s*([a-z_]+)\s*[=!]", expression))


def expressions_of_rules(text):
    """{alert: expression}; YAML is read by promtool, this reads what the file has of it."""
    found = {}
    for block in re.split(r"\n\s+- alert: ", text)[1:]:
        expression = re.search(r"expr: (\|\n(?:\s{10,}.*\n)+|.*\n)", block).group(1)
        found[block.split("\n")[0].strip()] = expression.lstrip("|\n")
    return found


def exposed_by_a_run():
    """(text, names of samples)"""
    with runs.Folder() as folder:
        run = folder.start("shown", 2, **{**KEYS, **runs.ENDLESS}, data__validation=folder.data, metrics__prometheus="0", metrics__prometheus_folder=folder.path)
        try:
            address = server.address_of(run.folder)
            run.wait_for_step(5)
            text = server.fetch(f"http://{address}/metrics")
            runs.wait_until(lambda: any("tessera_checkpoint_step" in read(path) for path in glob.glob(f"{folder.path}/*.prom")), "the file for node exporters", pause=0.05)
            files = [name for name in os.listdir(folder.path) if name.endswith(".prom")]
            of_file = read(folder.path, files[0])
        finally:
            run.kill()
        stays = os.path.exists(os.path.join(folder.path, files[0]))
    return text, of_file, files, stays


def check_figures(check, text, of_file):
    names = {name for name, _ in server.samples_of(text)}
    families = re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M)
    page = read(ROOT, "docs/metrics.md")
    unknown = sorted(name for name, _ in families if not re.search(rf"`{name}(\{{\w+\}})?`", page))
    check(f"the page of figures has all {len(families)} that a run shows", not unknown, ", ".join(unknown))
    labels = {label for _, written in server.samples_of(text) for label in re.findall(r"[{,](\w+)=", written)}
    check("and all labels", labels <= {"run", "run_id", "version", "host", "layout", "part", "expert", "file", "of", "le", "quantile", "rank"}, str(labels))
    ours = {name for name in names if name.startswith("tessera_")}
    check("the file for node exporters has the same", {name for name, _ in server.samples_of(of_file)} == ours)
    done = subprocess.run(["promtool", "check", "metrics"], input=of_file, capture_output=True, text=True)
    check("promtool takes the text", done.returncode == 0, done.stdout + done.stderr)
    return names


def check_uses(check, names):
    rules = expressions_of_rules(read(MONITORING, "alerts.yml"))
    check(f"all of {len(rules)} alerts are read from the file", 0 < len(rules) == read(MONITORING, "alerts.yml").count("- alert:"))
    dashboard = json.loads(read(MONITORING, "dashboard.json"))
    panels = {f"{panel['title']} {target['refId']}": target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])}
    for what, expressions in (("alerts", rules), ("dashboard", panels)):
        missing = {f"{where}: {name}" for where, text in expressions.items() for name in names_in(text) if name not in names | WITH_A_PROFILE | {"up"} and not name.startswith("DCGM_FI_")}
        used = {name for text in expressions.values() for name in names_in(text)}
        check(f"{what}: all of {len(used)} names are of figures that a run shows", len(used) > 8 and not missing, str(missing))
    page = read(ROOT, "docs/monitoring.md")
    check("the page has a line for each alert, and for no other", re.findall(r"^\| `(Tessera\w+)`", page, re.M) == list(rules), str(list(rules)))
    counters = {name for text in panels.values() for name in re.findall(r"DCGM_\w+", text)}
    check("and for each counter of the dashboard", counters and all(f"`{name}`" in page for name in counters), str(counters))
    tested = read(os.path.dirname(os.path.abspath(__file__)), "alerts_test.yml")
    check("a test makes each alert fire", all(re.search(rf"alertname: {name}\n.*\n?\s*exp_alerts:\s*(\[\{{|\n)", tested) for name in rules))
    ids = [panel["id"] for panel in dashboard["panels"]]
    check("panels have numbers of their own", len(set(ids)) == len(ids))


def check_rules(check):
    here = os.path.dirname(os.path.abspath(__file__))
    for arguments in (["check", "rules", f"{MONITORING}/alerts.yml"], ["check", "config", f"{MONITORING}/prometheus.yml"], ["test", "rules", f"{here}/alerts_test.yml"]):
        done = subprocess.run(["promtool", *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        check(f"promtool {' '.join(arguments[:2])}", done.returncode == 0, done.stdout + done.stderr)


def lost(ours, theirs, where=""):
    """What another reading of a JSON value does not have."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [entry for key, value in ours.items() for entry in (lost(value, theirs[key], f"{where}.{key}") if key in theirs else [f"{where}.{key}"])]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [entry for i, value in enumerate(ours) for entry in lost(value, theirs[i], f"{where}[{i}]")]
    return [] if ours == theirs else [f"{where}: {ours} is {theirs}"]


def check_grafana(check):
    try:
        from grafana_foundation_sdk.cog import plugins  # pylint: disable=import-outside-toplevel
        from grafana_foundation_sdk.cog.encoder import JSONEncoder  # pylint: disable=import-outside-toplevel
        from grafana_foundation_sdk.models.dashboard import Dashboard  # pylint: disable=import-outside-toplevel
    except ImportError as error:
        print(f"skipped: {error}; run scripts/setup --peer", file=sys.stderr)
        sys.exit(77)
    plugins.register_default_plugins()
    dashboard = json.loads(read(MONITORING, "dashboard.json"))
    faults = lost(dashboard, json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard))))
    check("Grafana's types hold all of the dashboard", not faults, "\n".join(faults))
    dashboard["panels"][1]["fieldConfig"]["defaults"]["unti"] = dashboard["panels"][1]["fieldConfig"]["defaults"].pop("unit")
    faults = lost(dashboard, json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard))))
    check("and miss a word that is none", faults == [".panels[1].fieldConfig.defaults.unti"], str(faults))


def main():
    check = runs.Checks()
    if "--grafana" in sys.argv[1:]:
        check_grafana(check)
        sys.exit(not check.good)
    server.skip_without("promtool")
    server.skip_without_library()
    check_rules(check)
    text, of_file, files, stays = exposed_by_a_run()
    names = check_figures(check, text, of_file)
    check_uses(check, names)
    check("the file has the run's name, and stays after a kill", len(files) == 1 and re.fullmatch(r"tessera-shown-[0-9a-f]{8}\.prom", files[0]) and stays, str(files))
    sys.exit(not check.good)


if __name__ == "__main__":
    main()
