"""Checks tutorials/: every step of the five tutorials has a place on its page, and what cluster commands name exists.

usage: tutorials_test.py --build FOLDER [--hosts]

A step is a heading "### ID: ..." and what is below it. readme_test.py runs the blocks below the marks **laptop** and, with
--hosts, all others. Commands in `...` behind **cluster** are not run, but the files, programs and options in them must exist.
ci/tests/steps.md says what ran a step: id|state|by. A state begins with real, stand-in `NAME`, partial:, not run or –;
"by" names the blocks of the page, laptop, hosts and job, and other tests. --hosts runs the pages' blocks for two test hosts
and for jobs of BCP. Exit status: 0 right, 1 wrong, 77 test hosts are impossible here.
"""
import argparse
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import readme_test

ROOT = pathlib.Path(__file__).resolve().parents[2]
STEPS = {"bcp": ("BCP", 29), "gadi": ("GADI", 17), "lambda": ("LMP", 28), "technion": ("TEC", 21), "epfl": ("EPFL", 36)}
STATE = re.compile(r"(real\b|stand-in `|partial: \S|not run\b|–$)")
ON_STAND_INS = r"(stand_ins|jobs\.(bcp|runai|kubernetes))\."  # the tests that run no real scheduler
KINDS = {"laptop": "laptop", "cluster": "job"}  # of a mark; all others are of hosts


def steps_of(pages):
    """Of each step: its page, its id, the kinds of its blocks, whether GPUs are emulated, its commands for a cluster."""
    for page, text in pages.items():
        for name, section in re.findall(r"^### ([A-Z]+-\d+): [^\n]+\n(.*?)(?=^##|\Z)", text, re.M | re.S):
            blocks = [block for block in readme_test.BLOCK.finditer(section) if block["language"] == "console"]
            texts = re.findall(r"^\*\*cluster\*\* (`.*?)(?=\n\n|\Z)", readme_test.BLOCK.sub("", section).strip(), re.M | re.S)
            yield {"page": page, "id": name, "kinds": {KINDS.get(block["mark"], "hosts") for block in blocks},
                   "emulated": blocks and all("needs: emulated-gpu" in block["note"] for block in blocks),
                   "cluster": re.findall("`([^`]+)`", " ".join(texts).replace("\n", " "))}


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


def errors(pages, table, build):
    """Everything that is wrong but for what the commands print."""
    steps = list(steps_of(pages))
    places = [(step["page"], step["id"]) for step in steps]
    rows = [line.split("|") for line in table.splitlines() if re.match(r"[A-Z]+-\d+\|", line)]
    wanted = [(page, f"{name}-{number:02}") for page, (name, count) in STEPS.items() for number in range(1, count + 1)]
    yield from (f"{step} has not exactly one place on {page}.md" for page, step in wanted if places.count((page, step)) != 1)
    yield from (f"{step} on {page}.md is no step of that tutorial" for page, step in places if (page, step) not in wanted)
    yield from (f"{step} has not exactly one row in steps.md" for _, step in wanted if [row[0] for row in rows].count(step) != 1)
    words = set(re.findall(r"\w[\w-]*", "".join(file.read_text() for file in ROOT.glob("[!b]*/**/CMakeLists.txt"))))
    of = {step["id"]: step for step in steps}
    for name, state, by in (row for row in rows if len(row) == 3 and row[0] in of):
        step, tests = of[name], re.findall("`([^`]+)`", by)
        kinds = set(re.findall(r"\b(laptop|hosts|job)\b", re.sub("`[^`]+`", "", by)))
        for command in step["cluster"]:
            yield from (f"{name}: {error}: {command}" for error in unknown(command, build))
        if not STATE.match(state):
            yield f"{name}: '{state}' begins with none of real, stand-in, partial, not run, –"
        if kinds != step["kinds"]:
            yield f"{name}: the page has blocks for {sorted(step['kinds'])}, and steps.md says {sorted(kinds)}"
        yield from (f"{name}: there is no test '{test}'" for test in tests if not set(test.split(".")) <= words)
        for stand_in in re.findall(r"stand-in `([^`]+)", state):
            if not any((ROOT / place / stand_in).exists() for place in ("ci/test-cluster/stand-ins", "tools", "07-rdma-tuning")):
                yield f"{name}: there is no stand-in '{stand_in}'"
        ran_for_real = kinds & {"laptop", "hosts"} and not step["emulated"] or any(not re.match(ON_STAND_INS, test) for test in tests)
        if state.startswith("real") and not ran_for_real:
            yield f"{name}: only a stand-in or emulated GPUs ran it: its state cannot be real"
        if not (by or state.startswith(("–", "not run"))) or state == "–" and (by or step["cluster"]):
            yield f"{name}: '{state}', but by '{by}'"


def planted_faults(pages, table, build):
    """Each check has to find what is wrong in a copy of the texts."""
    heading = "### LMP-07: its variables\n"
    faults = {
        "LMP-07 has not exactly one place": (heading, ""),
        "LMP-29 on lambda.md is no step": (heading, heading + "\n### LMP-29: more\n"),
        "there is no 'jobscripts/bcp/01-enviroment.sh'": ("`bash jobscripts/bcp/01-environment.sh`", "`bash jobscripts/bcp/01-enviroment.sh`"),
        "there is no '01-environment/explor'": ('c "$BUILD/01-environment/explore ', 'c "$BUILD/01-environment/explor '),
        "'--require-comand' is not in the --help of explore": ('explore --require-command simulate"', 'explore --require-comand simulate"'),
        "LMP-07: the page has blocks for []": ("**laptop**\n\n```console\n$ mnrun --standalone --nproc-per-node 2 sh -c 'echo $LOCAL", "```sh\n"),
        "BCP-03 has not exactly one row": ("BCP-03|", "BCP-3|"),
        "there is no test 'jobs.bcq.right'": ("`jobs.bcp.right`", "`jobs.bcq.right`"),
        "there is no stand-in 'ngd'": ("stand-in `ngc`", "stand-in `ngd`"),
        "BCP-06: only a stand-in": ("BCP-06|stand-in `ngc`", "BCP-06|real"),
        "LMP-20: only a stand-in": ("LMP-20|stand-in `emulated-gpu`;", "LMP-20|real,"),
        "begins with none of": ("BCP-12|real", "BCP-12|run"),
        "BCP-03: '–', but by": ("BCP-03|stand-in `ngc`", "BCP-03|–"),
    }
    for expected, (before, after) in faults.items():
        damaged = [text.replace(before, after, 1) for text in (*pages.values(), table)]
        if damaged == [*pages.values(), table] or not any(
                expected in error for error in errors(dict(zip(pages, damaged)), damaged[-1], build)):
            yield f"a planted fault is not found: {expected}"


def run_on_hosts(build):
    """Runs what readme_test.py runs on two test hosts, and two pages with a planted fault."""
    with tempfile.TemporaryDirectory() as folder:
        for mark in ("two hosts", "cluster"):
            (pathlib.Path(folder) / f"{mark.replace(chr(32), chr(45))}.md").write_text(f"**{mark}**\n\n```console\n$ hostname\nnode1\n```\n")
        marked = re.compile(r"^\*\*(laptop, as root|two hosts|cluster)\*\*", re.M)
        pages = [page for page in sorted((ROOT / "tutorials").glob("*.md")) if marked.search(page.read_text())]
        for page in [*pages, *pathlib.Path(folder).iterdir()]:
            status = subprocess.run([sys.executable, readme_test.__file__, page, "--source", build / "env.sh", "--hosts"],
                                    cwd=ROOT, check=False).returncode
            if status == 77:
                sys.exit(77)
            if (status == 0) != (page.parent.name == "tutorials"):
                yield f"{page.name} ended with {status}"


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--hosts", action="store_true")
    options = parser.parse_args()
    build = options.build.resolve()
    pages = {page: (ROOT / f"tutorials/{page}.md").read_text() for page in STEPS}
    table = (ROOT / "ci/tests/steps.md").read_text()
    wrong = list(run_on_hosts(build)) if options.hosts else [*errors(pages, table, build), *planted_faults(pages, table, build)]
    print(f"{sum(count for _, count in STEPS.values())} steps, {len(wrong)} wrong", *wrong, sep="\n")
    return 1 if wrong else 0


sys.exit(main())
