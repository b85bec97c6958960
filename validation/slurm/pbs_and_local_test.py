#!/usr/bin/env python3
"""pbs/train.pbs against programs that pretend to be PBS, and slurm/local.sh: what ends mean there, with ranks that pretend too; and one run of each with
tessera itself on two host ranks, asked to stop and gone on with.
    pbs_and_local_test.py TESSERA MPIEXEC"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
TESSERA, MPIEXEC = (shutil.which(program) for program in sys.argv[1:3])

QSTAT = """cat "$JOB"
"""
# Takes a job, unless it is told to refuse: what it was given, and the values of the variables that it was told to take.
QSUB = """[ -z "${QSUB_REFUSES:-}" ] || { echo "qsub: submission from this host is refused" >&2; exit 1; }
printf '%s\\n' "$@" >"$CALLS.qsub"
env >"$CALLS.env"
echo 8.server
"""
QRERUN = """echo "$*" >"$CALLS.qrerun"
"""
MPI = """echo "$*" >"$CALLS.mpiexec"
while [ $# -gt 0 ]; do case $1 in -n | --ppn | --depth | --cpu-bind) shift 2 ;; --hostfile) cp "$2" "$CALLS.hosts"; shift 2 ;; -*) shift ;; *) break ;; esac; done
exec "$@"
"""
# As ranks end: "75 40" reports status and step; "76 - WORDS" says WORDS before; "hang" waits for a signal, and saves on USR1.
RANKS = """[ "$1" != ends ] || [ -n "${SILENT:-}" ] || exec "$REAL" "$@"
[ "$1" = train ] || exit 0
read -r status step words <"$CALLS.how"
[ -z "$words" ] || echo "$words"
if [ "$status" = hang ]; then
  trap 'status=75 step=5' USR1
  echo "$$" >"$CALLS.waits"
  while [ "$status" = hang ]; do sleep 0.05; done
fi
[ "$step" != - ] || step=nothing
printf 'status %s\\nsaved %s\\n' "$status" "$step" >"$TESSERA_STATUS_FILE"
kill -KILL $$
"""
FIELDS = {"Job_Name": "tessera", "run_count": "1", "Rerunable": "True", "ctime": "Thu Jan 01 12:00:00 2026", "Account_Name": "project",
          "Resource_List.select": "2:system=polaris", "Resource_List.walltime": "06:00:00", "Resource_List.place": "scatter",
          "Resource_List.filesystems": "home:eagle"}


def wait_for(what, condition):
    """The bound is against hangs alone."""
    end = time.monotonic() + 300
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"waited 300 s for {what}")
        time.sleep(0.05)


class Scratch(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name
        for name in ("slurm", "pbs"):
            shutil.copytree(os.path.join(ROOT, name), self.path(name))
        for name, text in {"qstat": QSTAT, "qsub": QSUB, "qrerun": QRERUN, "mpiexec": MPI, "tessera": RANKS}.items():
            self.write(name, f"#!/usr/bin/env bash\n{text}")
            os.chmod(self.path(name), 0o755)
        self.write("deck.toml", "")
        self.write("nodes", "n1\nn2\n")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)

    def read(self, name):
        if not os.path.exists(self.path(name)):
            return ""
        with open(self.path(name)) as file:
            return file.read()

    def environment(self, **more):
        kept = {name: value for name, value in os.environ.items() if not re.match("SLURM|PBS|TESSERA|DECK|OVERRIDES", name)}
        return {**kept, "PATH": f"{self.folder}:{os.environ['PATH']}", "CALLS": self.path("calls"), "JOB": self.path("job"), "TESSERA": self.path("tessera"),
                "REAL": TESSERA,
                "DECK": "deck.toml", **more}

    def clear_calls(self):
        for name in os.listdir(self.folder):
            if name.startswith("calls."):
                os.remove(self.path(name))

    def real_run(self):
        """The program, the data and a deck of a run that has no end; its environment."""
        with open(os.path.join(ROOT, "validation/slurm/small.toml")) as deck:
            self.deck = deck.read()
        self.write("text.txt", "".join(f"Line {i}: two ranks, one world.\n" for i in range(500)))
        subprocess.run([TESSERA, "tokenize", "--tokenizer", "byte", "text.txt", "data"], cwd=self.folder, check=True, capture_output=True)
        self.steps(10**9)
        return {"TESSERA": TESSERA, "TESSERA_MPIEXEC": MPIEXEC, "OVERRIDES": "data.train=data/train.h5 run.output_dir=run"}

    def steps(self, count):
        self.write("deck.toml", re.sub(r"(?m)^steps = .*", f"steps = {count}", self.deck))

    def done_steps(self):
        rows = (json.loads(line) for line in self.read("run/metrics.jsonl").split("\n")[:-1])
        return [row["step"] for row in rows if "loss" in row]

    def check_all_steps(self, count):
        self.assertEqual(self.done_steps(), list(range(1, count + 1)), "no step is lost or done twice")


class Pbs(Scratch):
    def begin(self, how="", fields=None, **environment):
        """One start of a job by PBS, which runs a copy of the script."""
        self.clear_calls()
        self.write("calls.how", how + "\n")
        rows = {**FIELDS, **(fields or {}), "Submit_arguments": f"-A project -q prod -v DECK {self.path('pbs/train.pbs')}"}
        text = "".join(f"    {name} = {value}\n" for name, value in rows.items())
        self.write("job", "Job Id: 7.server\n" + re.sub(r"(?m)^(.{70})(.+)$", r"\1\n\t\2", text))  # as qstat breaks lines
        shutil.copy(self.path("pbs/train.pbs"), self.path("copy"))
        return subprocess.Popen(["bash", self.path("copy")], cwd="/", env=self.environment(
            PBS_JOBID="7.server", PBS_O_WORKDIR=self.folder, PBS_NODEFILE=self.path("nodes"), PBS_O_QUEUE="prod", **environment))

    def start(self, how="", fields=None, **environment):
        self.status = self.begin(how, fields, **environment).wait(timeout=300)
        self.assertEqual([name for name in os.listdir(self.folder) if name.endswith((".status", ".hosts", ".saved")) and not name.startswith("calls")], [])
        return self.read("pbs-7.log")

    def test_every_script_parses(self):
        for folder, _, names in os.walk(os.path.join(ROOT, "pbs")):
            for name in names:
                subprocess.run(["bash", "-n", os.path.join(folder, name)], check=True)

    def test_a_lost_run_is_followed_by_a_job_like_it(self):
        text = self.start("76 -")
        self.assertEqual(self.status, 76)
        self.assertIn("job 8.server follows this one", text)
        given = self.read("calls.qsub").split("\n")
        for option, value in (("-W", "depend=afterany:7.server"), ("-q", "prod"), ("-A", "project"), ("-l", "select=2:system=polaris"), ("-l", "walltime=06:00:00"),
                              ("-l", "place=scatter"), ("-l", "filesystems=home:eagle"), ("-N", "tessera")):
            self.assertIn((option, value), list(zip(given, given[1:])))
        self.assertRegex(given[given.index("-a") + 1], r"^\d{12}\.\d\d$")
        self.assertIn("TESSERA_LOG", given[given.index("-v") + 1].split(","))
        self.assertEqual(given[-2], self.path("pbs/train.pbs"))
        self.assertIn(f"TESSERA_LOG={self.path('pbs-7')}\n", self.read("calls.env"))
        self.start("75 40")
        self.assertNotIn("-a", self.read("calls.qsub").split("\n"), "a run that has saved waits for nothing")

    def test_where_qsub_is_refused_the_job_starts_again(self):
        self.start("75 40", QSUB_REFUSES="yes")
        self.assertEqual(self.read("calls.qrerun"), "7.server\n")

    def test_what_is_not_started_again(self):
        rows = (("75 40", {"Rerunable": "False"}, 75, "PBS does not queue the job again"), ("0 9", {}, 0, "the run is done"), ("8 -", {}, 8, "not queued again"))
        for how, fields, status, words in rows:
            with self.subTest(how):
                text = self.start(how, fields)
                self.assertEqual((self.status, self.read("calls.qsub"), self.read("calls.qrerun")), (status, "", ""), text)
                self.assertIn(words, text)

    def test_no_progress(self):
        for count in range(3):
            text = self.start("76 -", TESSERA_LOG=self.path("pbs-7"), TESSERA_LOST_PAUSE="1")
        self.assertEqual((self.status, self.read("calls.qsub")), (79, ""), text)

    def test_a_program_that_does_not_answer(self):
        """One more start, and no second: nobody counts what they save."""
        text = self.start("76 40", SILENT="yes", TESSERA_LOG=self.path("pbs-7"))
        self.assertEqual(self.status, 76)
        self.assertIn("does not say what follows this end", text)
        self.assertIn("job 8.server follows this one", text)
        self.start("76 40", SILENT="yes", TESSERA_LOG=self.path("pbs-7"))
        self.assertEqual((self.status, self.read("calls.qsub")), (76, ""))
        for how, status in (("0 9", 0), ("3 -", 3)):
            self.start(how, SILENT="yes", TESSERA_LOG=self.path("other"))
            self.assertEqual((self.status, self.read("calls.qsub")), (status, ""))

    def test_a_spare_node_takes_the_place_of_one_that_failed_twice(self):
        self.write("nodes", "n1\nn1\nn2\nn2\nn3\nn3\n")
        hosts = []
        words = ["error: the process of rank 2 on n1 has ended during x.", "warning: rank 2 on n1 was lost 0.4 s after its last report: runs compute: `x` for 0 s (step 9)"]
        for count in range(3):
            self.start(f"76 - tessera: rank 0 on n2: {words[count % 2]}", TESSERA_NODES="2", TESSERA_LOST_TRIES="9")
            hosts.append(self.read("calls.hosts"))
            self.assertIn("-n 4 --ppn 2 --hostfile ", self.read("calls.mpiexec"))
        self.assertEqual(hosts, ["n1\nn2\n", "n1\nn2\n", "n2\nn3\n"])

    def test_a_start_that_was_killed_is_told(self):
        self.write("pbs-7.status.saved", "saved 30\n")
        self.start("75 40", {"run_count": "2"})
        self.assertRegex(self.read("pbs-7.ends"), "start 1: status 143, saved 30\n.*start 2: status 75, saved 40\n")

    def test_term_is_for_pbs_to_explain(self):
        job = self.begin("hang")
        wait_for("the ranks", lambda: self.read("calls.waits"))
        job.send_signal(signal.SIGTERM)
        job.wait(timeout=300)
        text = self.read("pbs-7.log")
        self.assertIn("its state is saved; the job does not queue itself: it was deleted, or preempted", text)
        self.assertEqual((job.returncode, self.read("calls.qsub")), (75, ""))

    def test_sites(self):
        for site, words in (("polaris", "--depth=8 --cpu-bind depth -n 8 --ppn 4 "), ("aurora", "--cpu-bind list:1-51:53-103 -n 4 --ppn 2 ")):
            text = self.start("75 40", TESSERA_SITE=site, TESSERA_LOG=self.path(site))
            self.assertIn(words, self.read("calls.mpiexec"), text)

    def test_a_run_is_asked_to_save_before_the_walltime(self):
        environment = self.real_run()
        self.write("nodes", "localhost\nlocalhost\n")
        job = self.begin(fields={"Resource_List.walltime": "00:05:04"}, **environment)
        self.assertEqual(job.wait(timeout=300), 75, self.read("pbs-7.log"))
        self.assertIn("the time limit of 304 s leaves no time to train", self.read("pbs-7.log"))
        self.assertIn("TESSERA_LOG", self.read("calls.qsub"))
        last = (self.done_steps() or [0])[-1]
        self.steps(last + 20)
        self.start(TESSERA_LOG=self.path("pbs-7"), **environment)
        self.assertEqual(self.status, 0, self.read("pbs-7.log"))
        self.check_all_steps(last + 20)


class Local(Scratch):
    def begin(self, *arguments, **environment):
        return subprocess.Popen(["bash", self.path("slurm/local.sh"), *arguments], cwd=self.folder, env=self.environment(**environment), stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)

    def test_ends(self):
        rows = {"0 9": (0, 1), "2 -": (2, 1), "75 40": (75, 1), "76 -": (79, 2)}
        for how, (status, starts) in rows.items():
            with self.subTest(how):
                self.write("calls.how", how + "\n")
                job = self.begin("2", "deck.toml", TESSERA_LOST_TRIES="2", TESSERA_LOST_PAUSE="0")
                text, _ = job.communicate(timeout=300)
                self.assertEqual((job.returncode, text.count(": 2 ranks, ")), (status, starts), text)
        for arguments in ((), ("deck.toml",), ("0", "deck.toml"), ("2",)):
            job = self.begin(*arguments)
            self.assertIn("usage: slurm/local.sh", job.communicate(timeout=300)[0])
            self.assertEqual(job.returncode, 6)

    def test_a_run_is_asked_to_save_and_goes_on_and_to_stop(self):
        environment = self.real_run()
        job = self.begin("2", "deck.toml", *environment["OVERRIDES"].split(), **environment)
        wait_for("the first steps", lambda: len(self.done_steps()) > 3)
        job.send_signal(signal.SIGUSR1)
        wait_for("the second start", lambda: "start 1: status 75" in self.read("local-deck.ends"))
        before = self.done_steps()[-1]
        wait_for("steps of the second start", lambda: len(self.done_steps()) > before + 3)
        job.send_signal(signal.SIGTERM)
        text, _ = job.communicate(timeout=300)
        self.assertEqual(job.returncode, 75, text)
        self.assertIn("this script was asked to stop", text)
        self.assertEqual(self.read("local-deck.ends").count("status 75"), 2)
        self.check_all_steps(self.done_steps()[-1])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
