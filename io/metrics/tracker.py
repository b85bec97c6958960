# Rows of a run for a service that keeps figures of experiments: Weights & Biases or MLflow, each by its own package. Requests: "open" imports the package, "init" begins the
# run there or goes on with it, "rows" logs, "ends" finishes. What the services are told is numbers alone.
import importlib


def flat(row):
    """{name: number}: lists and named numbers are one of KEY/NUMBER or KEY/NAME each."""
    numbers = {}
    for key, value in row.items():
        parts = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else [(None, value)]
        for name, number in parts:
            if isinstance(number, (int, float)) and not isinstance(number, bool):
                numbers[key if name is None else f"{key}/{name}"] = number
    return numbers


class Wandb:
    def __init__(self, package, asked):
        self.run = package.init(project=asked["project"], entity=asked["team"] or None, group=asked["group"] or None, name=asked["name"], id=asked["id"] or asked["fresh_id"],
                                resume="allow", dir=asked["folder"], config=asked["deck"])
        # A run that goes back logs earlier steps again, which W&B's own counter would drop.
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def name(self):
        return {"id": self.run.id, "address": getattr(self.run, "url", None) or ""}

    def log(self, row):
        self.run.log(row)

    def finish(self, well):
        self.run.finish(exit_code=0 if well else 1)


class Mlflow:
    MOST_PARAMETERS, MOST_CHARACTERS = 100, 500  # of a request; of a value

    def __init__(self, package, asked):
        self.package = package
        if asked["uri"]:
            package.set_tracking_uri(asked["uri"])
        package.set_experiment(asked["project"])
        self.run = package.start_run(run_id=asked["id"]) if asked["id"] else package.start_run(run_name=asked["name"])
        deck = [] if asked["id"] else [(key, value[: self.MOST_CHARACTERS]) for key, value in asked["deck"].items()]
        for at in range(0, len(deck), self.MOST_PARAMETERS):
            package.log_params(dict(deck[at : at + self.MOST_PARAMETERS]))

    def name(self):
        return {"id": self.run.info.run_id, "address": self.package.get_tracking_uri()}

    def log(self, row):
        self.package.log_metrics({key: value for key, value in row.items() if key not in ("step", "time")}, step=row["step"])

    def finish(self, well):
        self.package.end_run("FINISHED" if well else "FAILED")


KINDS = {"wandb": Wandb, "mlflow": Mlflow}
package = tracker = None


def make_way():
    """Steps come first: the lowest class of a process that still runs, on any core that the system gives."""
    os.nice(19)
    try:
        os.sched_setaffinity(0, range(os.cpu_count()))
    except OSError:
        pass  # then it stays where the rank is


def open_package(request):
    global package
    make_way()
    name = request.data.decode()
    os.environ.setdefault("WANDB_SILENT", "true")  # nobody reads what it prints
    try:
        package = importlib.import_module(name)
    except ImportError as error:
        raise Fault(f"{sys.executable} cannot import {name} ({error}). Install it there: {sys.executable} -m pip install {name}; or let "
                    f"TESSERA_PYTHON name a Python "
                    "that has it.", "environment") from error
    return str(getattr(package, "__version__", "")).encode()


def told(what, act):
    """What a package refuses, or a network does not reach, is no defect of ours."""
    try:
        return act()
    except (Exception, SystemExit) as error:
        raise Fault(f"{what}: {type(error).__name__}: {error}", "environment") from error


def begin(request):
    global tracker
    asked = json.loads(request.data)
    tracker = told(f"{asked['kind']} did not start a run", lambda: KINDS[asked["kind"]](package, asked))
    return json.dumps(tracker.name()).encode()


def log_rows(request):
    for line in request.data.decode().splitlines():
        row = flat(json.loads(line))
        if len(row) > 2:  # more than when it was
            told("rows were refused", lambda: tracker.log(row))
    return b""


def finish(request):
    told("the run there was not finished", lambda: tracker.finish(request.data == b"well"))
    return b""


if __name__ == "__main__":
    serve({b"open": open_package, b"init": begin, b"rows": log_rows, b"ends": finish}, int(sys.argv[1]))
