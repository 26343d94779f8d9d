"""Checks TUTORIALS.md: every step of the tutorials has a row, what the rows name exists, and their commands run.

usage: tutorials_test.py --build FOLDER [--hosts | --tour FOLDER] [FILE]

A row is | id | the tutorial's step and command | here | job script | tested | difference, or what is missing |. In the
column "here" every `...` is a command; those behind "on a cluster:" are not run, but the files, programs and options in
them must exist. "tested" begins with a kind:
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
Exit status: 0 right, 1 wrong, 77 test hosts are impossible here.
"""
import argparse
import concurrent.futures
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import clean_clone

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = {"BCP": 29, "GADI": 17, "LMP": 28, "TEC": 21, "EPFL": 36}
KINDS = {"run for real": r"run\b|real\b", "on a stand-in": r"stand-in\b", "not run": r"not run\b", "nothing to run": "–"}
ON_STAND_INS = r"(stand_ins|jobs\.(bcp|runai|kubernetes))\."  # the tests that run no real scheduler
LIMIT = 60  # seconds for one row


def parse(text):
    for line in text.splitlines():
        if not re.match(r"\| *[A-Z]+-\d+ *\|", line):
            continue
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        name, _, here, job, tested = (cells + [""] * 5)[:5]
        local, _, cluster = here.partition("on a cluster:")
        found = re.search(r"run (here|on two hosts|on both hosts)", tested)
        yield {"id": name, "cells": len(cells), "tested": tested,
               "kind": next((kind for kind, begin in KINDS.items() if re.match(begin, tested)), None),
               "commands": re.findall("`([^`]+)`", local), "cluster": re.findall("`([^`]+)`", cluster),
               "jobs": re.findall("`([^`]+)`", job), "tests": re.findall("`([^`]+)`", tested),
               "runs": found and found[1], "in_job": "run in a job" in tested,
               "status": int((re.findall(r"exit status (\d+)", tested) or [0])[0]),
               "beside": (re.findall(r"beside ([A-Z]+-\d+)", tested) or [None])[0]}


def unknown(command, build):
    """What a command that is not run names, and what does not exist."""
    for path in re.findall(r"(?<![\w/])(?:\$BUILD|ci|jobscripts|0\d-[a-z-]+)/[\w./-]+", command):
        path = path.removeprefix("$BUILD/")
        source = path.rpartition("/")  # of a program that this build leaves out
        if not any((place / path).exists() for place in (ROOT, build)) and not any(
                (ROOT / source[0]).glob(f"**/{source[2]}.c*")):
            yield f"there is no '{path}'"
    for program, arguments in re.findall(r"(?:\$BUILD/[\w-]+/|^)(\w+)( [^\"|;&]*)?", command):
        for file in build.glob(f"0*/{program}"):
            words = shlex.split(arguments)
            known = "".join(subprocess.run([file, *more, "--help"], capture_output=True, text=True, check=False).stdout
                            for more in ([], words[:1]))
            for word in words[:words.index("--") if "--" in words else None]:
                option = word.partition("=")[0]
                if word.startswith("--") and not re.search(rf"{option}(?![\w-])", known):
                    yield f"'{option}' is not in the --help of {program}"


def errors(text, build):
    """Everything that is wrong with TUTORIALS.md but for its commands' outcome."""
    rows = list(parse(text))
    makefiles = "".join(file.read_text() for file in ROOT.glob("[!b]*/**/CMakeLists.txt"))
    words = set(re.findall(r"\w[\w-]*", makefiles))
    for row in rows:
        def wrong(what):
            return f"{row['id']}: {what}"

        if row["cells"] != 6:
            yield wrong(f"{row['cells']} cells, not 6 (a | in a command is written \\|)")
        for command in row["cluster"]:
            for error in unknown(command, build):
                yield wrong(f"{error}: {command}")
        for path in row["jobs"]:
            if not list((ROOT / "jobscripts").glob(path)):
                yield wrong(f"there is no job script '{path}'")
        if row["kind"] is None:
            yield wrong(f"'{row['tested']}' begins with none of run, real, stand-in, not run, –")
        tests = [name for name in row["tests"] if "." in name and set(name.split(".")) <= words]
        for name in set(row["tests"]) - set(tests):
            if not any((ROOT / place / name).exists() for place in ("ci/test-cluster/stand-ins", "common")):
                yield wrong(f"there is no test or stand-in '{name}'")
        emulated = "EMULATED_GPUS" in " ".join(row["commands"])
        if row["kind"] == "run for real" and (
                emulated or tests and not row["runs"] and all(re.match(ON_STAND_INS, name) for name in tests)):
            yield wrong("a stand-in or an emulated GPU ran it, so it is not real")
        if bool(row["commands"]) != bool(row["runs"]) or row["in_job"] and not row["cluster"]:
            yield wrong("a command that no test runs, or a run without a command")
    ids = [row["id"] for row in rows]
    steps = [f"{tutorial}-{number:02}" for tutorial, count in STEPS.items() for number in range(1, count + 1)]
    yield from (f"{step} has not exactly one row" for step in steps if ids.count(step) != 1)
    yield from (f"{name} is no step of the tutorials" for name in ids if name not in steps)


def prepared(root, commands):
    """The commands after those that the reader of a table has typed before."""
    return [f"cd {shlex.quote(str(root))}", ". build/release/env.sh", "export BUILD=$PWD/build/release", *commands]


def run_here(rows, build, tour):
    """What is wrong. A tour without CUDA has no emulated GPUs: what needs them runs on the build."""
    def run(row, root):
        end, output = clean_clone.run(prepared(root, row["commands"]), LIMIT, root)
        return end == row["status"] or f"{row['id']}: the end is {end}, not {row['status']}:\n{output[-3000:]}"

    for emulated, where in ((False, tour or build), (True, build)):
        chosen = [row for row in rows if ("EMULATED_GPUS=" in " ".join(row["commands"])) == emulated]
        with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
            clone = clean_clone.clone(ROOT, where.resolve(), pathlib.Path(folder) / "clone")
            yield from (error for error in pool.map(lambda row: run(row, clone), chosen) if error is not True)


def run_on_hosts(rows, jobs, build, tools):
    """What is wrong, with two test hosts."""
    name, hosts = f"tutorials-{os.getpid()}", ["bash", ROOT / "ci/test-cluster/hosts"]

    def script(commands):
        path = "".join(f"{folder}/bin:" for folder in tools)
        return "\n".join(["set -e", f"export PATH={path}$PATH", *prepared(ROOT, commands)])

    def judged(row, *processes):
        ends = [(process.communicate()[0], process.returncode) for process in processes]
        if ends[0][1] != row["status"] or any(status for _, status in ends[1:]):
            yield f"{row['id']}: exit status {[status for _, status in ends]}:\n" + "".join(text for text, _ in ends)

    def start(*command):
        return subprocess.Popen(["timeout", str(LIMIT), *command], cwd=ROOT, env=env, stdin=subprocess.DEVNULL, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    with tempfile.TemporaryDirectory(dir=build) as storage:
        env = os.environ | {"PATH": f"{ROOT}/ci/test-cluster/stand-ins:{os.environ['PATH']}", "MULTINODE_HOSTS": name,
                            "STAND_IN_STORAGE": storage}
        shared = [word for folder in (build, *tools) for word in ("--share", folder)]
        up = subprocess.run([*hosts, "up", "2", "--name", name, *shared], cwd=ROOT, env=env, check=False).returncode
        if up:
            sys.exit(up)
        try:
            for row in rows:
                other = row if row["runs"] == "on both hosts" else next(
                    (other for other in rows if other["beside"] == row["id"]), None)
                if not row["beside"]:
                    yield from judged(row, *[
                        start(*hosts, "run", "--name", name, f"node{node}", "bash", "-c", script(on_node["commands"]))
                        for node, on_node in enumerate([row, other]) if on_node])
            for row in jobs:
                yield from judged(row, start(
                    "ngc", "batch", "run", "--name", "test", "--ace", "test", "--instance", "dgxa100.80g.2.norm", "--image",
                    "test", "--result", "/mnt/results", "--array-type", "PYTORCH", "--replicas", "2", "--total-runtime", "1h",
                    "--commandline", f"bash -c {shlex.quote(script(row['cluster']))} # bcprun"))
        finally:
            subprocess.run([*hosts, "down", "--name", name], check=True)


def planted_faults(text, build):
    """Each check has to find what is wrong in a copy of the text."""
    row = next(line for line in text.splitlines() if line.startswith("| LMP-07 "))
    faults = {
        "LMP-07 has not exactly one row": (row + "\n", ""),
        "BCP-30 is no step": (row, row + "\n" + row.replace("LMP-07", "BCP-30")),
        "there is no '01-environment/who_am_j'": ("-c $BUILD/01-environment/who_am_i", "-c $BUILD/01-environment/who_am_j"),
        "'--require-comand' is not in the --help of explore": ('explore --require-command simulate"', 'explore --require-comand simulate"'),
        "there is no job script 'bcp/01-enviroment.sh'": ("`bcp/01-environment.sh`", "`bcp/01-enviroment.sh`"),
        "there is no test or stand-in": ("`jobs.bcp.right`", "`jobs.bcq.right`"),
        "so it is not real": ("stand-in `ngc`: `stand_ins.bcp` |", "real: `stand_ins.bcp` |"),
        "emulated GPU ran it": ("stand-in `emulated-gpu`, run here |", "run here |"),
        "a command that no test runs": (row, row.replace("run here", "real: `jobs.slurm.right`")),
        "cells, not 6": (row, row.replace("sh -c", "true | sh -c")),
    }
    for expected, (before, after) in faults.items():
        if before not in text or not any(expected in error for error in errors(text.replace(before, after, 1), build)):
            yield f"a planted fault is not found: {expected}"


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--hosts", action="store_true", help="run the rows for two hosts")
    parser.add_argument("--tour", type=pathlib.Path, help="run what needs no GPU on this build")
    parser.add_argument("file", type=pathlib.Path, nargs="?", default=ROOT / "TUTORIALS.md")
    options = parser.parse_args()
    build, text = options.build.resolve(), options.file.read_text()
    wrong = list(errors(text, build))
    caches = pathlib.Path.home() / ".cache/multinode"
    tools = {tool: pathlib.Path(os.environ.get("MULTINODE_" + folder.upper()) or caches / folder)
             for tool, folder in (("torchrun", "torch"), ("horovodrun", "horovod"))}
    here = {tool: folder for tool, folder in tools.items() if (folder / "bin" / tool).exists()}
    chosen = list(parse(text))
    rows = [row for row in chosen if row["runs"] and (row["runs"] != "here") == options.hosts]
    left = [row["id"] for row in rows if any(f"with {tool}" in row["tested"] for tool in set(tools) - set(here))]
    if left:
        print(f"left out, as torchrun or horovodrun is not installed (bash ci/setup all): {' '.join(left)}")
    rows = [row for row in rows if row["id"] not in left]
    if options.hosts:
        jobs = [row for row in chosen if row["in_job"]]
        fault = {"id": "a planted fault", "commands": ["false"], "cluster": ["bcprun -c false"], "runs": "", "status": 0,
                 "beside": None}
        ran = list(run_on_hosts([*rows, fault], [*jobs, fault], build, here.values()))
        rows, planted = rows + jobs, 2
    else:
        wrong += planted_faults(text, build)
        fault = [{"id": "a planted fault", "commands": commands, "status": status} for commands, status in
                 ((["false", "true"], 0), (["sh -c 'exit 3'"], 0), (["true"], 1))]
        ran, planted = list(run_here([*rows, *fault], build, options.tour)), len(fault)
    found = [error for error in ran if "a planted fault" in error]
    wrong += [error for error in ran if error not in found] + ["a planted fault is not found"] * (planted - len(found))
    print(f"{options.file.name}: the commands of {len(rows)} rows ran, {len(wrong)} wrong")
    for error in wrong:
        print(error)
    return 1 if wrong else 0


sys.exit(main())
