"""Runs every ```console block of a README in the current folder and compares what it prints.

usage: readme_test.py README.md [--path FOLDER]... [--timeout SECONDS] [--update]

A line that begins with "$ " is a command, a last "\\" carries it on; the lines below are its output, standard error
included, and "[exit status N]" where that is not 0. Directly above a block may stand
  <!-- vary: REGEX -->           what varies from run to run (times, host names): compared as one "~" each
Any other block that a reader takes for a command or its output (```text, ```sh, ```bash, ```) must say why nobody runs
it, directly above: <!-- not executed: REASON -->
--update writes what was printed into the README instead of comparing. Exit status: 0 the same, 1 not so.
"""
import argparse
import difflib
import os
import pathlib
import re
import signal
import subprocess
import sys

BLOCK = re.compile(
    r"^(?P<note>(?:<!--(?:(?!-->).)*-->\n)*)```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^```[ ]*$", re.S | re.M)
NEEDS_REASON = {"text", "sh", "bash", "shell", ""}


def run(command, folder, timeout):
    """What `command` prints, and its exit status as the README writes it."""
    process = subprocess.Popen(["bash", "-c", command], cwd=folder, stdin=subprocess.DEVNULL, text=True,
                               errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               start_new_session=True)
    try:
        printed, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        printed, _ = process.communicate()
        printed += f"[no end after {timeout} s]\n"
    if printed and not printed.endswith("\n"):
        printed += "\n"
    if process.returncode:
        printed += f"[exit status {process.returncode}]\n"
    return printed


def commands(text):
    """The commands of a block, with the lines they take there."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("$ "):
            taken = [line]
            while taken[-1].endswith("\\"):
                taken.append(next(lines, ""))
            yield "\n".join(taken)


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("readme", type=pathlib.Path)
    parser.add_argument("--path", action="append", default=[])
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    folder = pathlib.Path.cwd()
    os.environ["PATH"] = os.pathsep.join([*options.path, os.environ["PATH"]])

    executed = unexplained = different = left = 0
    source = options.readme.read_text()

    def check(match):
        nonlocal executed, unexplained, different, left
        note, text = match["note"], match["text"]
        line = source.count("\n", 0, match.start()) + 1 + note.count("\n")
        if match["language"] != "console":
            if match["language"] in NEEDS_REASON:
                left += 1
                if not re.search(r"<!-- not executed: \S.* -->", note):
                    unexplained += 1
                    print(f"{options.readme}:{line}: this block is not executed, and nothing says why: make it "
                          "```console or put <!-- not executed: REASON --> above it")
            return match[0]
        vary = re.search(r"<!-- vary: (.*?) -->", note)
        shown = ""
        for command in commands(text):
            executed += 1
            shown += command + "\n" + run(command[2:], folder, options.timeout)

        def masked(printed):
            return re.sub(vary[1], "~", printed) if vary else printed

        if masked(shown) == masked(text) and shown:
            return match[0]
        different += 1
        print(f"{options.readme}:{line}: this block prints something else:")
        sys.stdout.writelines(
            difflib.unified_diff(masked(text).splitlines(True), masked(shown).splitlines(True), "README", "printed"))
        start = match.start("text") - match.start()
        return match[0][:start] + shown + match[0][start + len(text):]

    updated = BLOCK.sub(check, source)
    print(f"{options.readme}: {executed} commands executed, {different} blocks differ; {left} blocks not executed, "
          f"{unexplained} without a reason")
    if options.update:
        options.readme.write_text(updated)
        return 1 if unexplained else 0
    return 1 if different or unexplained or not executed else 0


sys.exit(main())
