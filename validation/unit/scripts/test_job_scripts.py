#!/usr/bin/env python3
"""Tests of slurm/*.sh without Slurm: what ranks are given, and when a job queues itself again, with programs that only pretend to be srun, scontrol and
tessera. validation/slurm has the same scripts on a cluster."""

import os
import shutil
import subprocess
import tempfile
import unittest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../../.."))

# Gives a step the variables that Slurm's own would: all, or those that SLURM_EXPORT_ENV names, where --export says nothing else.
SRUN = """if [ "$1" = --help ]; then echo "${SRUN_KNOWS:-}"; exit; fi
case " $* " in *" ends "*) ;; *) echo "$*" >"$DONE.srun" ;; esac
export=${SLURM_EXPORT_ENV:-ALL}
while [[ $1 == --* ]]; do case $1 in --export=*) export=${1#*=} ;; esac; shift; done
kept=(PATH="$PATH")
if [ "$export" != NONE ] && [ "$export" != ALL ]; then
  for name in ${export//,/ }; do [ -z "${!name+set}" ] || kept+=("$name=${!name}"); done
fi
[ "$export" = ALL ] || exec env -i "${kept[@]}" "$@"
exec "$@"
"""
SCONTROL = """case $1 in
  show)
    if [ "$2" = hostnames ]; then tr , '\\n' <<<"$3"; exit; fi
    echo "JobId=7 JobState=RUNNING Reason=None Restarts=${SLURM_RESTART_COUNT:-0} TimeLimit=1-00:00:00 StdOut=$LOG Partition=main"
    echo "   Command=$SCRIPT SubmitTime=${SUBMITTED:-2026-01-01T00:00:00} ExcNodeList=${BARRED:-(null)} ReqNodeList=(null)" ;;
  requeue) echo requeued >>"$DONE" ;;
  update) echo "${*:3}" >>"$DONE.update" ;;
esac
"""
SINFO = """for node in n1 n2 n3 n4; do echo "$node alloc"; done; echo "n5 down*"
"""
# As ranks end: "75 40" reports status and step, "- 40" tells of its save and is killed, "-" is killed before it has saved; "- - n3: task 2: Killed" with
# what srun says of it. What follows such an end, the program itself says.
TESSERA = """[ "$1" != ends ] || exec REAL "$@"
read -r status step words <"$(dirname "$0")/how"
[ "$step" != - ] || step=
[ -z "$words" ] || echo "srun: error: $words" >>"$LOG"
echo "${TESSERA_STATUS_FILE:-nowhere} ${SITE_VARIABLE:-nothing}" >"$(dirname "$0")/given"
echo "$*" >"$(dirname "$0")/given.words"
if [ -n "${TESSERA_STATUS_FILE:-}" ]; then
  [ -z "$step" ] || echo "saved $step" >"$TESSERA_STATUS_FILE.saved"
  [ "$status" = - ] || printf 'status %s\\nsaved %s\\n' "$status" "${step:-nothing}" >"$TESSERA_STATUS_FILE"
fi
kill -KILL $$
"""


class JobScripts(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name
        shutil.copytree(os.path.join(ROOT, "slurm"), self.path("slurm"))
        for name, text in {"srun": SRUN, "scontrol": SCONTROL, "sinfo": SINFO, "tessera": TESSERA}.items():
            with open(self.path(name), "w") as file:
                file.write(f"#!/usr/bin/env bash\n{text.replace('REAL', os.environ['TESSERA'])}")
            os.chmod(self.path(name), 0o755)
        self.write("deck.toml", "")
        self.write("job.log", "")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w") as file:
            file.write(text)

    def read(self, name):
        with open(self.path(name)) as file:
            return file.read()

    def start(self, how, count=0, script="train_70b.sh", arguments=(), **environment):
        """One start of the job, whose ranks end as `how` says. Returns what it printed, and whether it queued itself again."""
        self.write("how", how + "\n")
        for name in ("done", "done.update", "done.srun"):
            self.write(name, "")
        path = self.path(os.path.join("slurm", script))
        done = subprocess.run(["bash", path, *arguments], cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, env={
            "PATH": f"{self.folder}:{os.environ['PATH']}", "TESSERA": self.path("tessera"), "DECK": "deck.toml", "LOG": self.path("job.log"), "SCRIPT": path,
            "DONE": self.path("done"), "SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_JOB_NUM_NODES": "1", "SLURM_RESTART_COUNT": str(count), **environment})
        self.status = done.returncode
        return done.stdout, self.read("done") == "requeued\n"

    def test_every_script_parses(self):
        for folder, _, names in os.walk(os.path.join(ROOT, "slurm")):
            for name in names:
                if name.endswith(".sh"):
                    subprocess.run(["bash", "-n", os.path.join(folder, name)], check=True)

    def test_ranks_have_the_variables_of_the_script(self):
        self.write("slurm/site.sh", "export SITE_VARIABLE=of-the-site\n")
        os.makedirs(self.path("run/checkpoints/latest"))
        scripts = {"train_70b.sh": (), "train_70b_offload.sh": (), "consolidate.sh": ("run", "out")}
        for script, arguments in scripts.items():
            for export in ({}, {"SLURM_EXPORT_ENV": "NONE"}, {"SLURM_EXPORT_ENV": "DECK,TESSERA"}):
                with self.subTest(script=script, **export):
                    text, _ = self.start("75 5", script=script, arguments=arguments, **export)
                    self.assertEqual(self.read("given"), f"{self.path('job.status')} of-the-site\n", text)

    def test_a_job_is_given_up_when_starts_come_no_further(self):
        rows = {  # how each start ends, and whether it is queued again after it
            "saves every time": [("75 10", True), ("75 20", True), ("75 30", True), ("75 40", True), ("75 50", True)],
            "is killed after a save": [("- 10", True), ("- 20", True), ("- 30", True), ("- 40", True)],
            "is killed before a save": [("-", True), ("-", True), ("-", False)],
            "is lost before a save": [("76", True), ("76", True), ("76", False)],
            "saves the same step": [("75 10", True), ("75 10", True), ("75 10", True), ("75 10", False)],
            "a newer step begins the count again": [("75 10", True), ("76", True), ("-", True), ("75 20", True), ("76", True), ("76", True), ("76", False)],
            "an older step is where it goes on from": [("75 90", True), ("75 10", True), ("75 20", True), ("76", True), ("76", True), ("76", False)],
            "what is given up begins anew": [("76", True), ("76", True), ("76", False), ("76", True), ("76", True), ("76", False)],
        }
        for name, starts in rows.items():
            if os.path.exists(self.path("job.ends")):
                os.remove(self.path("job.ends"))
            for count, (how, again) in enumerate(starts):
                with self.subTest(name, start=count + 1, how=how):
                    text, queued = self.start(how, count)
                    self.assertEqual(queued, again, text)
                    self.assertEqual("starts saved no newer step: look" in text, not again, text)
                    self.assertEqual(sorted(n for n in os.listdir(self.folder) if n.startswith("job.")), ["job.ends", "job.log"])

    def test_each_try_waits_longer(self):
        waits = []
        for count in range(3):
            self.start("76", count, TESSERA_LOST_TRIES="9")
            waits.append(self.read("done.update"))
        self.assertEqual(waits, [f"StartTime=now+{s}\n" for s in (120, 240, 480)])
        waits = []
        for count in range(3):  # a run that leaves with nothing new
            self.start("75", count, TESSERA_LOST_TRIES="9")
            waits.append(self.read("done.update"))
        self.assertEqual(waits, [f"StartTime=now+{s}\n" for s in (480, 960, 1920)])

    def test_a_node_that_failed_twice_is_left_out(self):
        rows = {  # ranks lost by starts, and what the queue is told after each; nodes of the job; nodes barred before
            "twice": ([2, 2], ["", "n3"], 2, ""),
            "with a save between": ([2, "40", 1], ["", "", "n3"], 2, ""),
            "beside others": ([2, 2], ["", "n4,n3"], 2, "n4"),
            "too few are left": ([2, 2], ["", ""], 4, ""),
        }
        for name, (starts, barred, nodes, before) in rows.items():
            if os.path.exists(self.path("job.ends")):
                os.remove(self.path("job.ends"))
            for count, rank in enumerate(starts):
                with self.subTest(name, start=count + 1):
                    how = "75 " + rank if isinstance(rank, str) else f"- - n3: task {rank}: Killed"
                    text, queued = self.start(how, count, SLURM_JOB_NUM_NODES=str(nodes), BARRED=before or "(null)")
                    self.assertTrue(queued, text)
                    told = self.read("done.update")
                    self.assertEqual("ExcNodeList=" + barred[count] in told.split() if barred[count] else "ExcNodeList" not in told, True, told + text)
            self.assertEqual("too few nodes" in text, nodes == 4, text)
            self.assertEqual(self.read("job.ends").count("left out n3"), int(nodes == 2))

    def test_a_fault_that_goes_with_the_rank_is_not_met_again(self):
        for second, again in (("n4: task 2: Killed", False), ("n4: task 1: Killed", True), ("n4: task 2: Segmentation fault", True), ("n[3-4]: tasks 2-3: Killed", True)):
            with self.subTest(second):
                if os.path.exists(self.path("job.ends")):
                    os.remove(self.path("job.ends"))
                self.assertTrue(self.start("- - n3: task 2: Killed")[1])
                text, queued = self.start("- - " + second, 1)
                self.assertEqual(queued, again, text)
                self.assertEqual(self.status, 76 if again else 78)

    def test_a_fault_is_not_queued_again(self):
        text, queued = self.start("2")
        self.assertFalse(queued, text)
        self.assertIn("tessera ended with status 2", text)

    def test_a_chain_ends_where_a_job_was_given_up(self):
        self.start("8 40")
        text, _ = self.start("0 50")  # the next one, which was submitted before
        self.assertEqual((self.status, self.read("done.srun")), (8, ""), text)
        self.assertIn("nothing is started", text)
        self.start("0 50", SUBMITTED="2999-01-01T00:00:00")  # and one that was submitted since
        self.assertEqual(self.status, 0)

    def test_a_record_that_cannot_be_read_is_not_taken_for_none(self):
        def ends(record):
            command = [os.environ["TESSERA"], "ends", self.path(record), "--report", self.path("job.status"), "--launcher-status", "137"]
            return subprocess.run(command, capture_output=True, text=True)
        os.symlink("loop.ends", self.path("loop.ends"))
        done = ends("loop.ends")
        self.assertEqual(done.returncode, 6, done.stderr)
        self.assertIn("cannot read the record of starts", done.stderr)
        self.assertEqual(ends("none.ends").returncode, 0)

    def test_what_srun_is_given(self):
        rows = [({}, (" --mpi=pmi2 --wait=30 --kill-on-bad-exit=0 ",), ("--oom-kill-step", "container")),
                ({"SLURM_MPI_TYPE": "pmix", "TESSERA_SRUN": "--cpu-bind=cores"}, (" --mpi=pmix ", " --cpu-bind=cores "), ()),
                ({"SRUN_KNOWS": "  --oom-kill-step[=0|1]"}, (" --oom-kill-step=0 ",), ()),
                ({"TESSERA_CONTAINER": "image.sif", "TESSERA_MOUNTS": "/data,/scratch"},
                 (f" apptainer exec --nv --pwd {self.folder} --bind {self.folder} --bind /data --bind /scratch image.sif ",), ("--container",)),
                ({"TESSERA_CONTAINER": "registry#tessera:1", "TESSERA_MOUNTS": "/data", "TESSERA": "tessera"},
                 (f" --container-image=registry#tessera:1 --container-mounts={self.folder}:{self.folder},/data:/data --container-workdir={self.folder} tessera train ",), ("apptainer",))]
        self.write("apptainer", '#!/bin/bash\nwhile [ "$1" != image.sif ]; do shift; done\nexec "${@:2}"\n')
        os.chmod(self.path("apptainer"), 0o755)
        for step, (environment, there, absent) in enumerate(rows):
            with self.subTest(**environment):
                text, _ = self.start(f"75 {step}", **environment)
                given = " " + self.read("done.srun")
                for words in there:
                    self.assertIn(words, given, text)
                for words in absent:
                    self.assertNotIn(words, given)
        text, _ = self.start("75 90", TESSERA_CONTAINER="image.sif", TESSERA_CONTAINER_BY="docker")
        self.assertIn("neither pyxis nor apptainer", text)

    def test_nodes_are_kept_back_by_supervise(self):
        spare = {"TESSERA_SPARES": "1", "SLURM_NTASKS": "6", "SLURM_JOB_NUM_NODES": "3"}
        for how, status, again in (("0 5", 0, False), ("76 5", 76, True), ("79 -", 79, False)):
            text, queued = self.start(how, arguments=("run.steps=9",), **spare)
            self.assertEqual((self.status, queued, self.read("done.srun")), (status, again, ""), text)
            self.assertEqual(self.read("given.words"), "supervise -n 4 --spares 1 -- train deck.toml run.steps=9\n")
        text, _ = self.start("0 5", TESSERA_CONTAINER="image.sif", SUBMITTED="2999-01-01T00:00:00", **spare)
        self.assertEqual(self.status, 6)
        self.assertIn("which starts no containers", text)

    def test_a_site_is_chosen(self):
        self.write("slurm/site/here.sh", "export SITE_VARIABLE=of-here\n")
        self.start("75 5", TESSERA_SITE="here")
        self.assertTrue(self.read("given").endswith(" of-here\n"))
        text, _ = self.start("75 5", TESSERA_SITE="nowhere")
        self.assertEqual(self.status, 6)
        self.assertIn("TESSERA_SITE=nowhere names no site", text)
        self.assertIn("here.sh infiniband.sh perlmutter.sh", text)

    def test_any_deck_is_trained(self):
        text, queued = self.start("75 5", script="train.sh", arguments=("deck.toml", "run.steps=9"), DECK="")
        self.assertTrue(self.read("done.srun").endswith(" train deck.toml run.steps=9\n"), text)
        self.assertTrue(queued)
        text, _ = self.start("75 5", script="train.sh", arguments=("run.steps=9",))
        self.assertTrue(self.read("done.srun").endswith(" train deck.toml run.steps=9\n"), text)
        for arguments in ((), ("run.steps=9",)):
            text, _ = self.start("75 5", script="train.sh", arguments=arguments, DECK="")
            self.assertEqual(self.status, 6, text)
            self.assertIn("slurm/train.sh DECK", text)
        text, _ = self.start("75 5", script="train.sh", arguments=("dekc.toml",), DECK="")
        self.assertEqual(self.status, 6, text)
        self.assertIn("cannot read the deck", text)

    def test_a_sweep_takes_its_line(self):
        self.write("rates.txt", "# two rates\noptimizer.learning_rate=1e-4 run.seed=3\noptimizer.learning_rate=2e-4\n")
        array = {"SLURM_ARRAY_JOB_ID": "7", "SWEEP": "rates.txt"}
        for line, words in (("1", "optimizer.learning_rate=1e-4 run.seed=3"), ("2", "optimizer.learning_rate=2e-4")):
            text, queued = self.start("75 5", script="sweep.sh", arguments=("run.steps=9",), SLURM_ARRAY_TASK_ID=line, **array)
            self.assertTrue(self.read("done.srun").endswith(f" train deck.toml run.steps=9 run.output_dir=runs/rates-{line} {words}\n"), text)
            self.assertTrue(queued)
        text, _ = self.start("75 5", script="sweep.sh", SLURM_ARRAY_TASK_ID="3", **array)
        self.assertIn("has no line 3: submit with --array=1-2", text)
        self.assertEqual(self.status, 6)

    def test_a_notice_shorter_than_a_save_is_said(self):
        os.makedirs(self.path("runs/x"))
        self.write("deck.toml", '[run]\noutput_dir = "elsewhere"\n')
        for seconds, said in ((200, False), (400, True)):
            self.write("runs/x/metrics.jsonl", f'{{"step": 1, "seconds": 20.5}}\n{{"saved": 1, "save_seconds": {seconds}.25}}\n{{"step": 2, "seconds": 21}}\n')
            text, _ = self.start("0 5", arguments=("run.output_dir=runs/x",))
            self.assertEqual(f"took up to {seconds + 22} s, but the ranks are asked to save 300 s before" in text, said, text)


if __name__ == "__main__":
    unittest.main()
