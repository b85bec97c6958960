#!/usr/bin/env python3
"""tessera supervise. With real ranks of this machine: one that is killed costs nothing of the final bits; what comes to the supervisor as a signal, and its own
end; a fault that would repeat. With a launcher that pretends: nodes that are lost, spares, fewer ranks, and what is given up."""
import json
import os
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "resume"))
import runs  # noqa: E402

COMMON = {**runs.ENDLESS, "run__reproducible": True, "run__threads": 1, "batch__global": 4, "checkpoint__every": 2}
check = runs.Checks()

# An mpiexec of nodes that are names. Probes end by the file `dead`. Start N notes its nodes, a line a rank, and ends as line N of `how` says: "76 40 WORDS", where
# "first" at its end is a first step; after the last line as the last.
LAUNCHER = """#!/usr/bin/env bash
cd "$(dirname "$0")"
if [ "$3" = --host ]; then
  echo "$4" >>probes
  case $(grep -sx "$4 .*\\|$4" dead) in "$4 hangs") exec sleep 600 ;; "$4") exit 1 ;; esac
  exit 0
fi
count=$(($(cat count 2>/dev/null || echo 0) + 1))
echo $count >count
{ echo $(cat "$4"); } >>hosts
read -r status step words < <(sed -n "${count}p" how; tail -n 1 how)
[ -z "$words" ] || echo "$words" >&2
case $words in *first) echo "first step done 0.10 s after launch" >&2 ;; esac
[ "$step" != - ] || step=nothing
[ "$status" = - ] || printf 'status %s\\nsaved %s\\n' "$status" "$step" >"${6#TESSERA_STATUS_FILE=}"
kill -KILL $$
"""


def environment():
    return {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "PBS", "TESSERA_"))}


def supervise(folder, name, options, **keys):
    """A supervised run under way, on this machine."""
    command = [runs.TESSERA, "supervise", "--local", "--launcher", runs.MPIEXEC, "--json", folder.run(name) + ".json", *options, "--", *folder.arguments(name, **keys)]
    return runs.Running(command, folder.run(name), folder.run(name) + ".log")


def ranks_of(run):
    return [pid for pid in run.ranks() if pid != run.process.pid]


def record(folder, name):
    """The lines of a run's record without their times."""
    with open(folder.run(name) + ".ends") as lines:
        return [line.rstrip("\n").split(" ", 2)[2] for line in lines]


def left_behind(folder, name):
    return [entry for entry in os.listdir(folder.path) if entry.startswith((name + ".status", name + ".hosts"))]


def killed_rank(folder):
    """A rank of a run that began anew is killed after a save, the run goes on, and SIGTERM to the supervisor saves: the bits of a run that nobody disturbed."""
    run = supervise(folder, "killed", ["-n", "2"], **COMMON, run__resume="never")
    run.wait_for_step(5)
    first = ranks_of(run)
    os.kill(max(first), signal.SIGKILL)
    runs.wait_until(lambda: "start 2 is running" in run.output() or run.ended(), "the second start")
    going = run.steps_done()
    runs.wait_until(lambda: run.steps_done() > going + 3 or run.ended(), "steps of the second start")
    pids = run.everybody()
    run.process.send_signal(signal.SIGTERM)
    status, output = run.wait(), run.output()
    check("SIGTERM to the supervisor: status 75", status == 75, output)
    runs.wait_until_gone(pids + first)
    step = int(os.readlink(folder.latest("killed"))[-8:])
    losses, state = runs.Reference(folder, **COMMON).at(step)
    check("killed rank: the losses are those of an undisturbed run", runs.same("losses", {k: v for k, v in folder.losses("killed").items() if k <= step}, losses))
    check("killed rank: the state is that of an undisturbed run", runs.same("state", folder.hashes("killed"), state))
    with open(folder.run("killed") + ".json") as text:
        told = json.load(text)
    rows = told["starts"]
    check("killed rank: two starts, as JSON", [row["status"] for row in rows] == [76, 75] and told["status"] == 75, json.dumps(told))
    check("killed rank: what it took", all(rows[0][key] is not None and rows[0][key] >= 0 for key in ("seconds_to_start", "seconds_to_first_step", "steps_again")), json.dumps(told))
    lines = [line for line in record(folder, "killed") if ": lost " not in line]  # which a launcher may not say
    check("killed rank: the record", lines == [f"start 1: status 76, saved {rows[0]['saved']}", f"start 2: status 75, saved {step}"], "\n".join(lines))
    check("killed rank: nothing is left behind", not left_behind(folder, "killed"))


def killed_launcher_and_supervisor(folder):
    run = supervise(folder, "launcher", ["-n", "2"], **COMMON)
    run.wait_for_step(3)
    launcher = runs.children(run.process.pid)[0]
    os.kill(launcher, signal.SIGKILL)
    runs.wait_until(lambda: "start 2 is running" in run.output() or run.ended(), "the second start")
    check("a launcher that is killed: the ranks start again", not run.ended(), run.output())
    second = subprocess.run(run.process.args, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=runs.HANG_SECONDS)
    check("a second supervisor of a run is refused", second.returncode == 6 and "another tessera supervise starts this run" in second.stderr, second.stderr)
    pids = run.everybody()
    run.process.kill()
    run.wait()
    runs.wait_until_gone(pids)
    check("a supervisor that is killed takes its ranks along", True)


def repeating_fault(folder):
    run = supervise(folder, "fault", ["-n", "2"], **COMMON, data__train=folder.path + "/nothing.bin")
    status, output = run.wait(), run.output()
    check("a fault that would repeat: its status, at once", status == 3 and output.count("supervise: start ") == 1, output)
    check("a fault that would repeat: given up", record(folder, "fault") == ["start 1: status 3, saved nothing", "given up: status 3"])


def bad_usage(folder):
    train = ["--", *folder.arguments("usage")]
    for status, words, options in ((6, "or give --local", ["-n", "2", *train]), (2, "--ranks is required", ["--local", *train]), (2, "--spare", ["-n", "2", "--local", "--spare=1", *train]),
                                   (2, "reserves nodes", ["-n", "2", "--local", "--spares", "1", *train]), (2, "start 4 ranks", ["-n", "3", "--hosts", "a,b", *train]),
                                   (2, "-- train DECK", ["-n", "2", "--local", "--", "plan", folder.deck]), (2, "-- train DECK", ["-n", "2", "--local"]),
                                   (2, "run.step", ["-n", "2", "--local", *train, "run.step=3"]), (6, "cannot start", ["-n", "2", "--local", "--launcher", "no-such-mpiexec", *train])):
        done = subprocess.run([runs.TESSERA, "supervise", *options], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=runs.HANG_SECONDS, env=environment())
        check(f"{' '.join(option for option in options[:4])}: {words}", done.returncode == status and words in done.stderr, f"status {done.returncode}\n{done.stderr}")


class Pretended:
    """Starts of a launcher that pretends, and what came of them."""

    def __init__(self, folder, name, how, options, dead=(), probe_seconds=600, **keys):
        place = os.path.join(folder.path, name)
        os.mkdir(place)
        for file, text in {"mpiexec": LAUNCHER, "how": "".join(line + "\n" for line in how), "dead": "".join(node + "\n" for node in dead)}.items():
            with open(os.path.join(place, file), "w") as out:
                out.write(text)
        os.chmod(place + "/mpiexec", 0o755)
        self.name = name
        command = [runs.TESSERA, "supervise", "--launcher", place + "/mpiexec", "--probe-seconds", str(probe_seconds), *options, "--", *folder.arguments(name + "/run", **keys)]
        self.done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=runs.HANG_SECONDS, env=environment())
        self.hosts = open(place + "/hosts").read().split("\n")[:-1] if os.path.exists(place + "/hosts") else []
        self.record = record(folder, name + "/run")

    def check(self, status, hosts, *words):
        output = f"status {self.done.returncode}\n{self.hosts}\n{self.done.stdout}{self.done.stderr}"
        check(f"{self.name}: status {status} after {len(hosts)} starts", self.done.returncode == status and self.hosts == hosts, output)
        for word in words:
            check(f"{self.name}: {word}", word in output or word in self.record, output + "\n".join(self.record))


def pretended_nodes(folder):
    on = ["-n", "4", "--hosts", "n[1-3]", "--spares", "1"]
    ended = "tessera: rank 0 on n1: error: the process of rank 3 on n2 has ended during x."
    Pretended(folder, "lost-process", [f"76 40 {ended}", "0 50"], on).check(
        0, ["n1 n1 n2 n2"] * 2, "the run lost rank 3 on n2 (ended); the node answers; it starts again at once", "start 1: lost n2 3 ended", "2 starts, ")
    Pretended(folder, "lost-node", [f"76 40 {ended}", "0 50"], on, dead=["n2"]).check(
        0, ["n1 n1 n2 n2", "n1 n1 n3 n3"], "n2 does not answer; n3 replaces n2", "left out n2")
    Pretended(folder, "node-that-hangs", [f"76 40 {ended}", "0 50"], on, dead=["n2 hangs"], probe_seconds=10).check(0, ["n1 n1 n2 n2", "n1 n1 n3 n3"], "left out n2")
    Pretended(folder, "dead-spare", ["- -", "0 50"], on, dead=["n2", "n3"]).check(0, ["n1 n1 n2 n2", "n1 n1"], "the spare node n3 does not answer and is not used", "the run continues with 2 ranks")
    Pretended(folder, "axes", ["76 40 first", "0 50"], ["-n", "6", "--hosts", "n[1-3]"], dead=["n2"], mesh__tp=2, batch__global=12).check(
        0, ["n1 n1 n2 n2 n3 n3", "n1 n1 n3 n3"], "with 4 ranks")
    Pretended(folder, "fixed-mesh", ["76 40 first", "0 50"], ["-n", "2", "--hosts", "n1,n2"], dead=["n2"], mesh__dp=2).check(
        76, ["n1 n2"], "start the same command on other nodes", "start 1: status 76, saved 40")
    Pretended(folder, "least", ["76 40 first", "0 50"], ["-n", "2", "--hosts", "n1,n2", "--least", "2"], dead=["n2"]).check(76, ["n1 n2"], "allow fewer ranks (--least)")
    Pretended(folder, "twice", [f"76 40 {ended}", f"76 50 {ended}", "0 60"], on).check(
        0, ["n1 n1 n2 n2", "n1 n1 n2 n2", "n1 n1 n3 n3"], "two starts ended at n2; n3 replaces n2", "left out n2")
    Pretended(folder, "same-rank", [f"76 - {ended} first", "76 - error: the process of rank 3 on n3 has ended during x. first"], on, dead=["n2"]).check(
        78, ["n1 n1 n2 n2", "n1 n1 n3 n3"], "the fault would repeat", "given up: status 78")
    Pretended(folder, "no-progress", ["76 - first"], [*on, "--tries", "2"]).check(79, ["n1 n1 n2 n2"] * 2, "the last 2 starts saved no newer step", "given up: status 79")


def main():
    with runs.Folder() as folder:
        bad_usage(folder)
        repeating_fault(folder)
        pretended_nodes(folder)
        killed_rank(folder)
        killed_launcher_and_supervisor(folder)
    return 0 if check.good else 1


if __name__ == "__main__":
    sys.exit(main())
