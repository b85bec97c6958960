#!/usr/bin/env python3
"""metrics.wandb and metrics.mlflow: every row of metrics.jsonl that has a number goes to the package, by its step; a later start goes on with the same run there; rows that
a slow package has no room for are dropped, counted and said, while steps go on; a package that is not there, or begins no run, is said. Packages are fake (trackers/).
    trackers.py"""
import json
import os
import re
import sys

import runs

check = runs.Checks()
HERE = os.path.dirname(os.path.abspath(__file__))
KEYS = {"batch__global": 2, "model__layers": 1, "learning_rate__schedule": "constant", "learning_rate__warmup_steps": 0, "evaluate__every": 2, "evaluate__batches": 1,
        "checkpoint__every": 2, "run__steps": 4}


def calls(log, kind=None):
    if not os.path.exists(log):
        return []
    with open(log) as lines:
        found = [json.loads(line) for line in lines]
    return [call for call in found if kind in (None, call["call"])]


def numbers(row):
    """{name: number} as a service has them."""
    flat = {}
    for key, value in row.items():
        parts = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else [(None, value)]
        for name, number in parts:
            if isinstance(number, (int, float)) and not isinstance(number, bool):
                flat[key if name is None else f"{key}/{name}"] = number
    return flat


def wanted(folder, name):
    rows = [numbers(row) for row in folder.metrics(name)]
    return [row for row in rows if len(row) > 2]


def environment(**more):
    """What only commands of their own process see."""
    for name in ("FAKE_TRACKER", "FAKE_TRACKER_WAITS", "FAKE_TRACKER_REFUSES"):
        os.environ.pop(name, None)
    os.environ.update({"PYTHONPATH": os.path.join(HERE, "trackers"), "PYTHONDONTWRITEBYTECODE": "1", "TESSERA_PYTHON": sys.executable, **more})


def weights_and_biases(folder, keys):
    log = os.path.join(folder.path, "wandb.calls")
    environment(FAKE_TRACKER=log)
    folder.train("plain", 2, **{**keys, "run__steps": 2})
    on = {**keys, "metrics__wandb": "words", "metrics__wandb_team": "we", "metrics__wandb_group": "first"}
    done = folder.train("plain", 2, own_process=True, **on)
    (begun,) = calls(log, "init")
    check("a run begins in its project", (begun["project"], begun["entity"], begun["group"]) == ("words", "we", "first"), str(begun))
    check("with the deck, and in the run's folder", begun["config"]["batch.global"] == "2" and begun["config"]["metrics.wandb"] == '"words"' and
          begun["dir"] == folder.run("plain"), str(begun))
    check("behind the steps", begun["nice"] >= 19, str(begun))
    check("steps are their own axis", ["*", "step"] in [[call["name"], call["step_metric"]] for call in calls(log, "define_metric")])
    sent = [call["row"] for call in calls(log, "log")]
    check("it has all rows, those before the key was set too", sent == wanted(folder, "plain"), f"{sent}\n{wanted(folder, 'plain')}")
    check("it is finished", calls(log)[-1] == {"call": "finish", "exit_code": 0}, str(calls(log)[-1]))
    check("the log names it", "metrics.wandb: this run is" in done.stdout + done.stderr and "at the address of" in done.stdout + done.stderr, done.stderr)
    folder.train("plain", 1, own_process=True, **{**on, "run__steps": 6})
    begins = calls(log, "init")
    check("a later start goes on with the same run", len(begins) == 2 and begins[1]["id"] == begins[0]["id"] and begins[1]["resume"] == "allow" and
          json.load(open(os.path.join(folder.run("plain"), "wandb.json")))["id"] == begins[0]["id"], str(begins))
    sent = [call["row"] for call in calls(log, "log")]
    check("and sends its own rows", sent == wanted(folder, "plain"), f"{sent}\n{wanted(folder, 'plain')}")


def mlflow(folder, keys):
    log = os.path.join(folder.path, "mlflow.calls")
    environment(FAKE_TRACKER=log)
    on = {**keys, "metrics__mlflow": "words", "metrics__mlflow_uri": "file:///elsewhere"}
    folder.train("mlflow", 1, own_process=True, **on)
    check("an experiment where the URI says", calls(log, "set_experiment") == [{"call": "set_experiment", "name": "words", "uri": "file:///elsewhere"}], str(calls(log)[:2]))
    params = {key: value for call in calls(log, "log_params") for key, value in call["params"].items()}
    check("the deck is its parameters", params["model.layers"] == "1" and len(params) > 100, str(params))
    of_rows = [(row["step"], {key: value for key, value in row.items() if key not in ("step", "time")}) for row in wanted(folder, "mlflow")]
    check("it has all rows by their steps", [(call["step"], call["metrics"]) for call in calls(log, "log_metrics")] == of_rows, str(of_rows))
    check("it is finished", calls(log)[-1] == {"call": "end_run", "status": "FINISHED"}, str(calls(log)[-1]))
    folder.train("mlflow", 1, own_process=True, **{**on, "run__steps": 6})
    check("a later start goes on with the same run", [call["run_id"] for call in calls(log, "start_run")] == [None, "run-of-mlflow"], str(calls(log, "start_run")))


def slow(folder, keys):
    log, gate = os.path.join(folder.path, "slow.calls"), os.path.join(folder.path, "gate")
    environment(FAKE_TRACKER=log, FAKE_TRACKER_WAITS=gate)
    begun = folder.start("slow", 1, **{**keys, **runs.ENDLESS, "evaluate__every": 0, "checkpoint__every": 0, "metrics__wandb": "words"})
    begun.wait_for_step(1400)  # more than wait for it: steps go on though nothing is taken
    check("nothing was taken meanwhile", calls(log, "log") == [], str(len(calls(log, "log"))))
    open(gate, "w").close()
    begun.signal_ranks(runs.signal.SIGTERM)
    status, text = begun.wait(), begun.output()
    check("the run saves and leaves as ever", status == 75, text)
    sent, rows = [call["row"]["step"] for call in calls(log, "log")], wanted(folder, "slow")
    dropped = re.search(r"metrics\.wandb: (\d+) rows were not sent to wandb", text)
    check("the rows that had room are there, in order, and the others are counted", 1024 <= len(sent) < len(rows) and sent == sorted(sent) and
          dropped and int(dropped[1]) == len(rows) - len(sent), f"{len(sent)} of {len(rows)}\n{text}")
    check("the first that is dropped is said", "takes rows more slowly than the run makes them" in text, text)


def faults(folder, keys):
    log = os.path.join(folder.path, "faults.calls")
    environment(FAKE_TRACKER=log, PYTHONPATH="")
    done = runs.tessera(*folder.arguments("missing", **keys, metrics__wandb="words"), own_process=True)
    if "No module named 'wandb'" in done.stderr:
        check("a missing package is said before the first step, with what to install", done.returncode == 6 and "-m pip install wandb" in done.stderr and
              "metrics.wandb = \"words\"" in done.stderr and not os.path.exists(os.path.join(folder.run("missing"), "checkpoints", "latest")), done.stderr)
    else:
        check("this Python has a wandb of its own", done.returncode == 0, done.stderr)
    environment(FAKE_TRACKER=log, FAKE_TRACKER_REFUSES="yes")
    done = folder.train("refused", 1, own_process=True, **keys, metrics__wandb="words")
    text = done.stdout + done.stderr
    check("a service that begins no run does not end ours", "wandb did not start a run: RuntimeError: no API key" in text and "no more rows are sent to wandb" in text and
          len(folder.losses("refused")) == 4, text)
    environment(FAKE_TRACKER=log)
    folder.train("diverged", 1, expect=8, own_process=True, **{**keys, "optimizer__learning_rate": 1000, "optimizer__gradient_clipping": 0.0, "metrics__wandb": "words",
                                                              "run__steps": 50})
    check("a run that fails is marked so", calls(log)[-1] == {"call": "finish", "exit_code": 1}, str(calls(log)[-3:]))


def main():
    with runs.Folder() as folder:
        keys = {**KEYS, "data__validation": folder.data}
        weights_and_biases(folder, keys)
        mlflow(folder, keys)
        faults(folder, keys)
        slow(folder, keys)
    sys.exit(not check.good)


if __name__ == "__main__":
    main()
