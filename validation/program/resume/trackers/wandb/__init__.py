"""A package of wandb's interface that writes what it is told to the file FAKE_TRACKER, a JSON object a line. FAKE_TRACKER_WAITS names a file: rows are not taken until it is there.
FAKE_TRACKER_REFUSES: no run begins."""
import json
import os
import time

__version__ = "0.0.fake"


def tell(**what):
    with open(os.environ["FAKE_TRACKER"], "a") as out:
        out.write(json.dumps(what) + "\n")


def wait():
    while not os.path.exists(os.environ.get("FAKE_TRACKER_WAITS", "/")):
        time.sleep(0.01)


class Run:
    def __init__(self, name):
        self.id, self.url = name, f"the address of {name}"

    def define_metric(self, name, step_metric=None):
        tell(call="define_metric", name=name, step_metric=step_metric)

    def log(self, row):
        wait()
        tell(call="log", row=row)

    def finish(self, exit_code=None):
        tell(call="finish", exit_code=exit_code)


def init(project=None, entity=None, group=None, name=None, id=None, resume=None, dir=None, config=None):
    if "FAKE_TRACKER_REFUSES" in os.environ:
        raise RuntimeError("no API key")
    tell(call="init", project=project, entity=entity, group=group, name=name, id=id, resume=resume, dir=dir, config=config, nice=os.nice(0))
    return Run(id)
