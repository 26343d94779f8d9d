"""Checks TUTORIALS.md: every step of the tutorials has a row, what the rows name exists, and their commands run.

usage: tutorials_test.py --build FOLDER [--hosts | --static | --update | --tour FOLDER] [FILE]

A row is | id | the tutorial's step and command | here | job script | tested | difference, or what is missing |. In the
column "here" every `...` is a command; those behind "on a cluster:" are checked but not run. "tested" begins with a kind:
  run, real      the step ran for real           stand-in NAME   on this stand-in
  not run        and why                         –               there is nothing to run
and says who runs the commands, in the repository's root after `source build/release/env.sh`, with BUILD set:
  run here[, exit status N]            this test; with --tour on what ci/tour has built there, but for emulated GPUs
  run on two hosts[ with torchrun]     this test with --hosts, on node0 of two test hosts (ci/test-cluster/hosts)
  run on two hosts with horovodrun     the same
  run on two hosts[ with torchrun], beside ID    the same, on node1, at the same time as row ID on node0
  run on both hosts[ with torchrun]    the same, the same command on both hosts at the same time
  run in a job                         this test with --hosts: the commands behind "on a cluster:", in a job of two
                                       replicas that the stand-in for ngc starts
  `NAME`                               the test of this name in CTest, or the stand-in
Checked: each id has one row; programs, options, files, job scripts, tests and stand-ins exist; the numbers at the top are
right (--update writes them). Each check has to find a fault that is planted in a
copy of the file.
Exit status: 0 right, 1 wrong, 77 test hosts are impossible here.
"""
import argparse
import concurrent.futures
import fnmatch
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import time

import clean_clone

STEPS = {"BCP": 29, "GADI": 17, "LMP": 28, "TEC": 21, "EPFL": 36}
KINDS = ["run for real", "on a stand-in", "not run", "nothing to run"]
ON_STAND_INS = r"(stand_ins|jobs\.(bcp|runai|kubernetes))\."  # the tests that run no real scheduler
LIMIT = 60  # seconds for one row
EXTERNAL = set("""
    . awk bash bcprun cat cd diff docker echo enroot env eval git grep horovodrun hostname less ls mkdir module mpicxx
    mpirun ngc nvcc pbsdsh printf python3 qsub ray runai salloc sbatch scontrol sh sort srun ssh ssh-copy-id ssh-keygen test
    torchrun tr wc""".split())
SUMMARY = re.compile(r"(?<=<!-- counted by ci/checks/tutorials_test.py -->\n)(?:\|.*\n)*")


class Checker:
    def __init__(self, root, build):
        self.root, self.build = root, build
        self.help_texts = {}
        self.built = {file.name: file for file in build.glob("[0-9][0-9]-*/*")
                      if file.is_file() and os.access(file, os.X_OK)}
        sources = [file for end in ("cpp", "cu") for file in root.glob(f"[0-9][0-9]-*/*.{end}")]
        makefiles = {file.parent: file.read_text() for file in root.rglob("CMakeLists.txt")
                     if "build" not in file.relative_to(root).parts}
        self.lessons = set(re.findall(r"multinode_lesson\((\w+)\.", "".join(makefiles.values())))
        self.programs = set(self.built) | {file.stem for file in sources}
        self.tests = "".join(makefiles.values())
        self.scripts_of = {test: scripts.split() for test, scripts in
                           re.findall(r"jobs_test\(([\w.]+) \w+ \w+ \w+((?: [\w-]+)+)\)", self.tests)}
        self.test_names = set(re.findall(r"\b\w[\w-]*[.][\w.${}-]+", self.tests))

    def is_test(self, name):
        """Whether a CMakeLists.txt has this name of a test; what stands for a ${variable} in it must be a word there."""
        for written in self.test_names:
            found = re.fullmatch(r"([\w.-]+)".join(re.escape(part) for part in re.split(r"\$\{\w+\}", written)), name)
            if found and all(re.search(rf"(?<![\w.]){re.escape(word)}(?![\w.])", self.tests) for word in found.groups()):
                return True
        return False

    def help_of(self, program, word):
        """The --help of a program, and of its command `word`; None where it is not in this build."""
        key = (program, word)
        if key not in self.help_texts:
            if program in self.lessons:
                command = ["true"]  # it has no options
            elif "/" in program:
                command = ["bash", program, "--help"]
            elif program in self.built:
                command = [self.built[program], *([word] if word else []), "--help"]
            else:
                return None
            done = subprocess.run(command, cwd=self.root, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=LIMIT)
            self.help_texts[key] = (done.stdout + done.stderr).replace("_", "-")
        return self.help_texts[key]

    def command(self, text):
        """Programs and files of a command that do not exist, and options that are not in the program's --help.

        It reads the words from left to right, and takes those in quotes for a command of their own. Options belong to the
        last program of this project before them, up to -- or the end of the command. A word such as all_reduce_perf, with
        an underscore, must be such a program wherever it stands.
        """
        program, command_of_program, at_start, quote, dollar, outside = None, "", True, "", False, None
        text = re.sub(r"\$\(\(.*?\)\)", "0", text)  # arithmetic
        for token in re.findall(r"""[^\s'"`;|&()<>]+|[;|&()<>'"]""", text):
            if token in "'\"":
                if not quote:
                    quote, outside, program = token, program, None  # what is quoted may be a command
                elif quote == token:
                    quote, program = "", outside
                continue
            if token in ";|&(":
                at_start = token != "(" or dollar
                program = None
                continue
            dollar = token.endswith("$")
            if token in ")<>" or dollar:
                continue
            if re.match(r"\w+=", token):  # an assignment, or the value of mpirun's -x
                token = token.split("=", 1)[1] if not at_start else ""
                if not token.startswith("$BUILD/"):
                    continue
            if program and token == "--":
                program = None
                continue
            if token.startswith("-"):
                if program and not at_start:
                    known = self.help_of(program, "")
                    if command_of_program and known is not None:
                        known += self.help_of(program, command_of_program)
                    option = token.split("=", 1)[0].replace("_", "-")
                    if known is not None and not re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", known):
                        yield f"'{option}' is not in the --help of {program} {command_of_program}".rstrip()
                continue
            if token.startswith("$BUILD/") and not (self.build / token[7:]).exists():
                folder, _, name = token[7:].rpartition("/")
                if name not in self.programs or not (self.root / folder).is_dir():
                    yield f"'{token}' does not exist in the build"
                    continue
            if re.match(r"(ci|jobscripts|common|0\d-[a-z-]+)/", token):
                if not (self.root / token).exists() and token.split("/")[-1] not in self.programs:
                    yield f"there is no file '{token}'"
                if token.startswith("ci/"):
                    program, command_of_program = token, ""
            name = token.split("/")[-1]
            external = token in EXTERNAL or token[0] == "$" or (self.root / token).is_file()
            if name in self.programs and (token == name or token[0] in "$.") and program in (None, "mnrun"):
                program, command_of_program = name, ""
            elif at_start and not quote and not external:
                yield f"there is no program '{token}'"
            elif re.fullmatch(r"[a-z0-9]+(_[a-z0-9]+)+", token) and token not in EXTERNAL:
                yield f"there is no program '{token}'"
            elif program in ("cluster", "rdma_tune") and not command_of_program and re.fullmatch("[a-z]+", token):
                command_of_program = token
            elif program == "mnrun" and token in EXTERNAL:
                program = None  # what mnrun starts has its own options
            at_start = token in ("do", "then", "!")

    def errors(self, text):
        """Everything that is wrong with TUTORIALS.md but for its commands' outcome."""
        rows, seen = parse(text), {}
        for row in rows:
            if len(row["cells"]) != 6:
                yield f"{row['id']}: {len(row['cells'])} cells, not 6 (a | in a command is written \\|)"
                continue
            seen[row["id"]] = seen.get(row["id"], 0) + 1
            for command in row["commands"] + row["cluster"]:
                for error in self.command(command):
                    yield f"{row['id']}: {error}: {command}"
            for path in re.findall("`([^`]+)`", row["job"]):
                if not list((self.root / "jobscripts").glob(path)):
                    yield f"{row['id']}: there is no job script '{path}'"
            if row["kind"] is None:
                yield f"{row['id']}: '{row['tested']}' begins with none of run, real, stand-in, not run, –"
            for name in re.findall("`([^`]+)`", row["tested"]):
                known = any((self.root / folder / name).exists() for folder in ("ci/test-cluster/stand-ins", "ci/test-cluster", "common"))
                if not known and not self.is_test(name):
                    yield f"{row['id']}: there is no test or stand-in '{name}'"
            tests = [name for name in re.findall("`([^`]+)`", row["tested"]) if self.is_test(name)]
            if row["kind"] == KINDS[0] and row["tested"].startswith("real") and not tests:
                yield f"{row['id']}: it says 'real' and names no test that ran it"
            for name in tests if row["tested"].startswith("real") else []:
                scheduler = re.match(r"jobs\.(\w+)", name)
                scripts = [path.partition("/")[2].rpartition(".")[0] for path in re.findall("`([^`]+)`", row["job"])
                           if scheduler and path.startswith(scheduler[1] + "/")]
                ran = self.scripts_of.get(name, scripts)  # without a list: all of the scheduler
                if scheduler and not any(fnmatch.fnmatch(script, pattern) for script in ran for pattern in scripts):
                    yield f"{row['id']}: {name} ran none of its job scripts"
            if row["kind"] == KINDS[0] and tests and all(re.match(ON_STAND_INS, name) for name in tests) and not row["runs"]:
                yield f"{row['id']}: {' '.join(tests)} ran it on a stand-in, so it is not real"
            if row["kind"] == KINDS[0] and "EMULATED_GPUS" in " ".join(row["commands"]):
                yield f"{row['id']}: emulated GPUs ran it, so it is not real"
            if row["runs"] and not row["commands"] or row["in_job"] and not row["cluster"]:
                yield f"{row['id']}: 'run' and no command to run"
            if row["commands"] and not row["runs"]:
                yield f"{row['id']}: a command that no test runs does not stand behind 'on a cluster:'"
        for tutorial, count in STEPS.items():
            for number in range(1, count + 1):
                name = f"{tutorial}-{number:02}"
                if seen.pop(name, 0) != 1:
                    yield f"{name} has not exactly one row"
        for name in seen:
            yield f"{name} is no step of the tutorials"
        if not SUMMARY.search(text) or SUMMARY.search(text)[0] != summary(rows):
            yield "the numbers at the top are not those of the rows: tutorials_test.py --update writes them"


def parse(text):
    rows = []
    for line in text.splitlines():
        if not re.match(r"\| *[A-Z]+-\d+ *\|", line):
            continue
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        name, _, here, job, tested, difference = (cells + [""] * 6)[:6]
        local, _, cluster = here.partition("on a cluster:")
        kind = next((kind for kind, beginning in zip(KINDS, (r"run\b|real\b", r"stand-in\b", r"not run\b", "–"))
                     if re.match(beginning, tested)), None)
        rows.append({"id": name, "cells": cells, "job": job, "tested": tested, "difference": difference, "kind": kind,
                     "commands": re.findall("`([^`]+)`", local), "cluster": re.findall("`([^`]+)`", cluster),
                     "in_job": "run in a job" in tested,
                     "runs": (re.findall(r"run (here|on two hosts|on both hosts)", tested) or [None])[0],
                     "status": int((re.findall(r"exit status (\d+)", tested) or [0])[0]),
                     "beside": (re.findall(r"beside ([A-Z]+-\d+)", tested) or [None])[0]})
    return rows


def summary(rows):
    lines = ["| tutorial | steps | " + " | ".join(KINDS) + " | partial |", "|---" * (len(KINDS) + 3) + "|"]
    for tutorial in [*STEPS, ""]:
        of_tutorial = [row for row in rows if row["id"].startswith(tutorial)]
        counts = [sum(row["kind"] == kind for row in of_tutorial) for kind in KINDS]
        partial = sum(row["difference"].startswith("partial") for row in of_tutorial)
        lines.append(f"| {tutorial or '**all**'} | {len(of_tutorial)} | " + " | ".join(map(str, [*counts, partial])) + " |")
    return "\n".join(lines) + "\n"


def prepared(root, commands):
    """The commands after those that the reader of a table has typed before."""
    return [f"cd {shlex.quote(str(root))}", ". build/release/env.sh", "export BUILD=$PWD/build/release", *commands]


def script(root, commands):
    return "\n".join(["set -e", *prepared(root, commands)])


def run(row, root):
    """None if the commands of a row end with its exit status, else what is wrong."""
    start = time.monotonic()
    status, output = clean_clone.run(prepared(root, row["commands"]), LIMIT, root)
    row["seconds"] = time.monotonic() - start
    if status == row["status"]:
        return None
    return f"{row['id']}: the end is {status}, not {row['status']}:\n{output[-3000:]}"


def run_here(rows, root):
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return [error for error in pool.map(lambda row: run(row, root), rows) if error]


def on_hosts(root, build, more, commands, folder, env=None):
    """Runs lines of shell with two test hosts; what lines that begin with WRONG say."""
    (folder / "all.sh").write_text("\n".join(commands) + "\n")
    shared = [word for one in (build, folder, *more) if one for word in ("--share", one)]
    done = subprocess.run(["bash", "ci/test-cluster/hosts", "with", "2", *shared, *(["--here"] if env else []), "--",
                           "bash", folder / "all.sh"],
                          cwd=root, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    print(done.stdout + done.stderr, end="")
    if done.returncode == 77:
        sys.exit(77)
    return ["not all of it ran"] if done.returncode else re.findall("^WRONG: (.*)", done.stdout, re.M)


def run_on_hosts(rows, root, build, tools):
    """Brings two test hosts up, and runs there all rows of `rows`, one after the other."""
    with tempfile.TemporaryDirectory(dir=build) as folder:
        folder = pathlib.Path(folder)
        lines = []
        for row in rows:
            if row["beside"]:
                continue
            file = row["id"].split()[-1]
            other = next((other for other in rows if other["beside"] == row["id"]),
                         row if "both" in row["runs"] else None)
            path = "export PATH=" + "".join(f"{folder}/bin:" for tool, folder in tools.items() if tool in row["tested"]) + "$PATH"
            for node, commands in ((0, row["commands"]), (1, other["commands"] if other else ["true"])):
                (folder / f"{file}.{node}").write_text(script(root, [path, *commands]))
            names = row["id"] + (f" and {other['id']}" if other and other is not row else "")
            lines += [f"status=0; echo '== {names}'",
                      f"cd {folder}",
                      f"timeout {LIMIT} ssh node1 bash {folder}/{file}.1 >{file}.log1 2>&1 </dev/null & other=$!",
                      f"timeout {LIMIT} bash {file}.0 >{file}.log 2>&1 </dev/null || status=$?",
                      f"wait $other || status=1; if ((status != {row['status']})); then",
                      f"echo \"WRONG: {names}: exit status $status\"; cat {file}.log*; fi"]
        return on_hosts(root, build, tools.values(), lines, folder)


def run_in_jobs(rows, root, build):
    """Runs the rows' commands for a cluster in jobs of the stand-in for ngc, whose replicas are two test hosts."""
    with tempfile.TemporaryDirectory(dir=build) as folder:
        folder = pathlib.Path(folder)
        lines = []
        for row in rows:
            file = row["id"].split()[-1]
            (folder / file).write_text(script(root, row["cluster"]))
            lines += [f"status=0; echo '== {row['id']} in a job'",
                      f"timeout {LIMIT} ngc batch run --name test --ace test --instance dgxa100.80g.2.norm --image test "
                      "--result /mnt/results --array-type PYTORCH --replicas 2 --total-runtime 1h "
                      f"--commandline 'bash {folder}/{file} # bcprun' >{folder}/log 2>&1 || status=$?",
                      f"if ((status != {row['status']})); then",
                      f"echo \"WRONG: {row['id']}: exit status $status\"; cat {folder}/log; fi"]
        env = dict(os.environ, PATH=f"{root}/ci/test-cluster/stand-ins:{os.environ['PATH']}",
                   STAND_IN_STORAGE=str(folder / "storage"))
        return on_hosts(root, build, [], lines, folder, env)


def planted_faults(checker, text):
    """Each check has to find what is wrong in a copy of the text."""
    def replaced(before, after):
        assert before in text, f"a fault is to be planted in '{before}', which is not there"
        return text.replace(before, after, 1)

    row = next(line for line in text.splitlines() if line.startswith("| LMP-07 "))
    faults = {
        "LMP-07 has not exactly one row": [text.replace(row + "\n", ""), text.replace(row, row + "\n" + row)],
        "BCP-30 is no step": [text + row.replace("LMP-07", "BCP-30") + "\n"],
        "there is no program 'who_am_j'": [replaced("`mpirun -n 2 who_am_i`", "`mpirun -n 2 who_am_j`")],
        "there is no program 'mprun'": [replaced("`mpirun -n 2 who_am_i`", "`mprun -n 2 who_am_i`")],
        "does not exist in the build": [replaced("$BUILD/01-environment/hello_mpi", "$BUILD/01-environment/hello_mpj")],
        "'--require-comand' is not in the --help of explore": [replaced("--require-command", "--require-comand")],
        "'--x' is not in the --help of who_am_i": [replaced("`mpirun -n 2 who_am_i`", "`mpirun -n 2 who_am_i --x`")],
        "there is no job script 'bcp/01-enviroment.sh'": [
            replaced("`bcp/01-environment.sh`", "`bcp/01-enviroment.sh`")],
        "there is no test or stand-in": [replaced("`jobs.bcp.right`", "`jobs.bcq.right`")],
        "names no test that ran it": [replaced("real: `jobs.slurm.right`, with Enroot", "real: with Enroot")],
        "ran none of its job scripts": [
            replaced(f"`{real}", f"`{other}") for real in ["slurm/04-ddp-uneven.sbatch` | real: `jobs.slurm.right` | partial: the test job"]
            for other in (real.replace("slurm/04-ddp-uneven.sbatch", "pbs/04-ddp.pbs"), real.replace("04-ddp-uneven", "06-ray-style"))],
        "ran it on a stand-in, so it is not real": [replaced("stand-in `ngc`: `stand_ins.bcp` |", "real: `stand_ins.bcp` |")],
        "emulated GPUs ran it": [replaced("stand-in `emulated-gpu`, run here |", "run here |")],
        "a command that no test runs": [replaced(row, row.replace("run here", "real: `jobs.bcp.right`"))],
        "the numbers at the top": [re.sub(r"\| BCP \| 29", "| BCP | 28", text)],
        "cells, not 6": [replaced(row, row.replace("sh -c", "true | sh -c"))],
    }
    for expected, texts in faults.items():
        for changed in texts:
            if not any(expected in error for error in checker.errors(changed)):
                yield f"a planted fault is not found: {expected}"
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "build").mkdir()
        (pathlib.Path(folder) / "build/release").symlink_to(checker.build)
        for commands, status, right in ((["false", "true"], 0, False), (["sh -c 'exit 3'"], 0, False),
                                        (["true"], 1, False), (["sh -c 'exit 3'"], 3, True)):
            if (run({"id": "planted", "commands": commands, "status": status}, folder) is None) != right:
                yield f"the outcome of {commands} is misjudged with exit status {status}"


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--hosts", action="store_true", help="run the rows for two hosts")
    parser.add_argument("--tour", type=pathlib.Path, help="run what needs no GPU on this build")
    parser.add_argument("--static", action="store_true", help="run no command")
    parser.add_argument("--update", action="store_true", help="write the numbers at the top")
    parser.add_argument("--only", default="", help="a regular expression for the ids to run")
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("file", type=pathlib.Path, nargs="?", default=root / "TUTORIALS.md")
    options = parser.parse_args()
    build = options.build.resolve()
    text = options.file.read_text()
    if options.update:
        text = SUMMARY.sub(lambda _: summary(parse(text)), text)
        options.file.write_text(text)
    checker = Checker(root, build)
    wrong = list(checker.errors(text))
    rows = [row for row in parse(text) if row["runs"] and re.search(options.only, row["id"])]
    if not wrong and not options.hosts:
        wrong = list(planted_faults(checker, text))
    if not wrong and not options.static:
        caches = pathlib.Path.home() / ".cache/multinode"
        tools = {"torchrun": pathlib.Path(os.environ.get("MULTINODE_TORCH") or caches / "torch"),
                 "horovodrun": pathlib.Path(os.environ.get("MULTINODE_HOROVOD") or caches / "horovod")}
        missing = [tool for tool, folder in tools.items() if not (folder / "bin" / tool).exists()]
        rows = [row for row in rows if (row["runs"] != "here") == options.hosts]
        left = [row["id"] for row in rows if any(f"with {tool}" in row["tested"] for tool in missing)]
        if left:
            print(f"left out, as {' and '.join(missing)} are not installed (bash ci/setup all): {' '.join(left)}")
        rows = [row for row in rows if row["id"] not in left]
        if options.hosts:
            jobs = [row for row in parse(text) if row["in_job"] and re.search(options.only, row["id"])]
            fault = {"id": "a planted fault", "commands": ["false"], "cluster": ["bcprun -c false"], "kind": "",
                     "tested": "", "runs": "", "status": 0, "beside": None}
            wrong = run_on_hosts([*rows, fault], root, build, {tool: tools[tool] for tool in tools if tool not in missing}) + run_in_jobs([*jobs, fault], root, build)
            found = [error for error in wrong if fault["id"] in error]
            wrong = [error for error in wrong if error not in found] + ["a planted fault is not found"] * (2 - len(found))
            rows += jobs
        else:
            for emulated, where in ((False, options.tour or build), (True, build)):  # a tour without CUDA has no such GPUs
                chosen = [row for row in rows if ("EMULATED_GPUS=" in " ".join(row["commands"])) == emulated]
                with tempfile.TemporaryDirectory() as folder:
                    wrong += run_here(chosen, clean_clone.clone(root, where.resolve(), pathlib.Path(folder) / "clone"))
            slowest = sorted(rows, key=lambda row: -row["seconds"])[:5]
            print("slowest: " + ", ".join(f"{row['id']} {row['seconds']:.1f} s" for row in slowest))
        print(f"{options.file.name}: the commands of {len(rows)} rows ran, {len(wrong)} wrong")
    unchecked = sorted({name for name in checker.programs - set(checker.built) if re.search(rf"\b{name}\b", text)})
    if unchecked:
        print(f"not in this build, so their options were not checked: {' '.join(unchecked)}")
    for error in wrong:
        print(error)
    return 1 if wrong else 0


sys.exit(main())
