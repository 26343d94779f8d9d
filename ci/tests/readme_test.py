"""Runs the ```console blocks of a README in one fresh shell, as a reader would, and compares what they print.

usage: readme_test.py README.md [--source FILE] [--timeout SECONDS] [--update] [--hosts]

The shell has no variable of this process: HOME, USER, TERM, LANG and the system's PATH are all that it begins with. It
starts in a copy of the current folder, as a clone would be, and what a command changes (folder, variables, files) holds
for the commands after it. --source names the env.sh of a build, which is build/release in that copy.

A line that begins with "$ " is a command, a last "\\" carries it on; the lines below are its output, standard error
included, and "[exit status N]" where that is not 0. Directly above a block may stand
  <!-- vary: REGEX -->           what varies from run to run (times, host names): compared as one "~" each
  <!-- file: PATH -->            of any block: it is written to that file, for the commands after it
  <!-- needs: NAME -->           it is left out where the shell does not find this program or the build has no such folder
and above these, as a paragraph that the reader sees, a mark that says where the block is typed:
  **laptop**                     here
  **laptop, as root**            here, with --hosts
  **two hosts**                  on node0 of two test hosts (ci/test-cluster/hosts)
  **both hosts**                 on node0 and on node1 at the same time; printed is what node0 prints, then node1
  **node0**, and next **node1**  two blocks, at the same time
  **cluster**                    in a job of two replicas, which the stand-in for ngc starts
With --hosts, the blocks for hosts and cluster are run, else those of the laptop; a block without a mark is run in every
shell, and in each job. Any other block that a reader takes for a command or its output (```text, ```sh, ```bash, ```)
must state why it is not executed, directly above: <!-- not executed: REASON -->
What varies shows this machine as `laptop`. Elsewhere no output may have that name, or the name of the machine that runs
this. --update writes what was printed into the README instead of comparing. Exit status: 0 the same, 1 different, 77 test
hosts are impossible here.
"""
import argparse
import concurrent.futures
import contextlib
import difflib
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import clean_clone

BLOCK = re.compile(
    r"^(?:\*\*(?P<mark>laptop(?:, as root)?|two hosts|both hosts|node0|node1|cluster)\*\*[^\n]*\n\n)?"
    r"(?P<note>(?:<!--(?:(?!-->).)*-->\n)*)```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^```[ ]*$", re.S | re.M)
PLACES = {"two hosts": ["node0"], "both hosts": ["node0", "node1"]}  # the shells of a mark that is not the name of one
NEEDS_REASON = {"text", "sh", "bash", "shell", ""}
# Open MPI 4 on a busy machine: it and the ssh that it starts both set that process's group, and one comes too late.
NOISE = re.compile(r"^\[\w+:\d+\] plm:rsh: Warning: setpgid\(.*\n", re.M)
LAPTOP = "laptop"  # the pages' name of the reader's machine, in what varies
HERE = os.uname().nodename.split(".")[0]
HOST = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in {LAPTOP, HERE} - {"localhost", "node0", "node1"}))
TEST_CLUSTER = pathlib.Path(__file__).resolve().parents[1] / "test-cluster"


def commands(text):
    """The commands of a block, with the lines they take there."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("$ "):
            taken = [line]
            while taken[-1].endswith("\\"):
                taken.append(next(lines, ""))
            yield "\n".join(taken)


class Job:
    """Runs each command in a separate job, after the commands of the blocks without a mark."""

    def __init__(self, clone, variables):
        self.clone, self.variables, self.before = clone, variables, []

    def run(self, command, limit):
        script = "\n".join([f"cd {shlex.quote(str(self.clone))}", *self.before, command])
        job = subprocess.run(
            ["timeout", str(limit), "ngc", "batch", "run", "--name", "test", "--ace", "test", "--instance", "dgxa100.80g.2.norm",
             "--image", "test", "--result", "/mnt/results", "--array-type", "PYTORCH", "--replicas", "2", "--total-runtime", "1h",
             "--commandline", f"bash -c {shlex.quote(script)} # bcprun"], check=False, env=self.variables, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        return re.sub(r"^job \d+: .*\n", "", job.stdout), job.returncode


def on_hosts(clone, stack):
    """The shells on two test hosts, which are up until the stack is left."""
    name, hosts = f"readme-{os.getpid()}", ["bash", str(TEST_CLUSTER / "hosts")]
    caches = pathlib.Path.home() / ".cache/multinode"
    tools = [os.environ.get(f"MULTINODE_{folder.upper()}") or str(caches / folder) for folder in ("torch", "horovod")]
    storage = clone.parent / "storage"
    storage.mkdir()
    environment = os.environ | {"PATH": f"{TEST_CLUSTER}/stand-ins:{os.environ['PATH']}", "MULTINODE_HOSTS": name,
                                "STAND_IN_STORAGE": str(storage)}
    shared = [word for folder in (clone.parent, *filter(os.path.isdir, tools)) for word in ("--share", folder)]
    if status := subprocess.run([*hosts, "up", "2", "--name", name, *shared], cwd=clone, env=environment, check=False).returncode:
        sys.exit(status)
    stack.callback(subprocess.run, [*hosts, "down", "--name", name], check=True)
    shells = {node: stack.enter_context(clean_clone.Shell(
        clone, environment, [*hosts, "run", "--name", name, node, "bash", "--norc", "--noprofile"])) for node in ("node0", "node1")}
    for shell in shells.values():
        shell.run(f"PATH={':'.join(f'{folder}/bin' for folder in tools)}:$PATH", 60)
    variables = clean_clone.environment() | {"MULTINODE_HOSTS": f"{name}-root"}
    return shells | {"cluster": Job(clone, environment), "laptop, as root": stack.enter_context(clean_clone.Shell(clone, variables))}


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("readme", type=pathlib.Path)
    parser.add_argument("--source", type=pathlib.Path)
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--hosts", action="store_true")
    options = parser.parse_args()

    executed = unexplained = different = left = 0
    source = options.readme.read_text()
    temporary = tempfile.TemporaryDirectory(prefix="readme.")
    build = options.source.parent.resolve() if options.source else None
    clone = clean_clone.clone(pathlib.Path.cwd(), build, pathlib.Path(temporary.name) / "clone")

    def run(shell, text):
        """Of each command of a block: the command, and what it printed."""
        ran = []
        for command in commands(text):
            printed, end = shell.run(command[2:], options.timeout)
            printed = NOISE.sub("", printed)
            if printed and not printed.endswith("\n"):
                printed += "\n"
            ending = "" if end == 0 else f"[exit status {end}]\n" if isinstance(end, int) else f"[{end}]\n"
            ran.append((command + "\n", printed + ending))
        return ran

    def lacks(needed, shell):
        if build and (build / needed).is_dir():
            return False
        return isinstance(shell, Job) or shell.run(f"type -P {needed}", options.timeout)[1] != 0

    def compare(match, shown):
        """The block as it is now: with what was printed, where that differs."""
        nonlocal different
        text = match["text"]
        line = source.count("\n", 0, match.start("text"))
        vary = re.search(r"<!-- vary: (.*?) -->", match["note"])

        def masked(printed, by="~"):
            return re.sub(vary[1], by, printed) if vary else printed

        printed = masked(text)
        for command in commands(printed):
            printed = printed.replace(command, "", 1)
        if HOST.search(printed):
            print(f"{options.readme}:{line}: the name of a host must vary: <!-- vary: REGEX -->")
        elif masked(shown) == masked(text) and shown:
            return text
        different += 1
        print(f"{options.readme}:{line}: this block prints something else:")
        sys.stdout.writelines(
            difflib.unified_diff(masked(text).splitlines(True), masked(shown).splitlines(True), "README", "printed"))
        return masked(shown, lambda varies: re.sub(rf"\b{re.escape(HERE)}\b", LAPTOP, varies[0]))

    blocks = []  # those that are executed: the match, and for each of its shells what run() will return
    with temporary, contextlib.ExitStack() as stack, concurrent.futures.ThreadPoolExecutor() as pool:
        shells = on_hosts(clone, stack) if options.hosts else {"laptop": stack.enter_context(clean_clone.Shell(clone))}
        for match in BLOCK.finditer(source):
            mark, note, text = match["mark"], match["note"], match["text"]
            if mark != "node1":
                concurrent.futures.wait([future for _, futures in blocks for future in futures])
            if written := re.search(r"<!-- file: (\S+) -->", note):
                next(iter(shells.values())).run(f"printf %s {shlex.quote(text)} >{written[1]}", options.timeout)
            if match["language"] in NEEDS_REASON:
                left += 1
                if not re.search(r"<!-- not executed: \S.* -->", note):
                    unexplained += 1
                    print(f"{options.readme}:{source.count(chr(10), 0, match.start('text'))}: this block is not executed, and "
                          "nothing says why: make it ```console or put <!-- not executed: REASON --> above it")
            places = [place for place in PLACES.get(mark, [mark] if mark else shells) if place in shells]
            if match["language"] != "console" or not places:
                continue
            needed = re.search(r"<!-- needs: (\S+) -->", note)
            if needed and lacks(needed[1], shells[places[0]]):
                print(f"{options.readme}: a block of {mark or 'every shell'} is left out, as it needs {needed[1]}")
                continue
            if not mark and "cluster" in places:
                places.remove("cluster")
                shells["cluster"].before += [command[2:] for command in commands(text)]
            executed += len(list(commands(text)))
            blocks.append((match, [pool.submit(run, shells[place], text) for place in places]))
        updated, end = "", 0
        for match, futures in blocks:
            ran = [future.result() for future in futures][:None if match["mark"] else 1]
            shown = "".join(of[0][0] + "".join(printed for _, printed in of) for of in zip(*ran))
            updated += source[end:match.start("text")] + compare(match, shown)
            end = match.end("text")
        updated += source[end:]
        if re.search(r"\b\d\d-[^/]+/README[.]md$", str(options.readme)) and "laptop" in shells:
            folder = shells["laptop"].run("pwd", options.timeout)[0].strip()
            if folder != str(clone):
                different += 1
                print(f"{options.readme} ends in {folder}, not in the root of the clone, where the next chapter begins")
    print(f"{options.readme}: {executed} commands executed, {different} blocks differ; {left} blocks not executed, "
          f"{unexplained} without a reason")
    if options.update:
        options.readme.write_text(updated)
        return 1 if unexplained else 0
    return 1 if different or unexplained or not executed else 0


if __name__ == "__main__":
    sys.exit(main())
