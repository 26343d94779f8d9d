"""Runs the ```console blocks of a README in one fresh shell, as a reader would, and compares what they print.

usage: readme_test.py README.md [--source FILE] [--timeout SECONDS] [--update]

The shell has no variable of this process: HOME, USER, TERM, LANG and the system's PATH are all that it begins with. It
starts in a copy of the current folder, as a clone would be, and what a command changes (folder, variables, files) holds
for the commands after it. --source names the env.sh of a build, which is build/release in that copy.

A line that begins with "$ " is a command, a last "\\" carries it on; the lines below are its output, standard error
included, and "[exit status N]" where that is not 0. Directly above a block may stand
  <!-- vary: REGEX -->           what varies from run to run (times, host names): compared as one "~" each
  <!-- file: PATH -->            of any block: it is written to that file, for the commands after it
Any other block that a reader takes for a command or its output (```text, ```sh, ```bash, ```) must state why it is
not executed, directly above: <!-- not executed: REASON -->
--update writes what was printed into the README instead of comparing. Exit status: 0 the same, 1 different.
"""
import argparse
import difflib
import pathlib
import re
import shlex
import sys
import tempfile

import clean_clone

BLOCK = re.compile(
    r"^(?P<note>(?:<!--(?:(?!-->).)*-->\n)*)```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^```[ ]*$", re.S | re.M)
NEEDS_REASON = {"text", "sh", "bash", "shell", ""}
HOST = re.compile(r"\bvm\b")  # where the READMEs' outputs were printed: elsewhere it has another name


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
    parser.add_argument("--source", type=pathlib.Path)
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()

    executed = unexplained = different = left = 0
    source = options.readme.read_text()
    temporary = tempfile.TemporaryDirectory(prefix="readme.")
    build = options.source.parent.resolve() if options.source else None
    clone = clean_clone.clone(pathlib.Path.cwd(), build, pathlib.Path(temporary.name) / "clone")

    def check(match):
        nonlocal executed, unexplained, different, left
        note, text = match["note"], match["text"]
        line = source.count("\n", 0, match.start()) + 1 + note.count("\n")
        if written := re.search(r"<!-- file: (\S+) -->", note):
            shell.run(f"printf %s {shlex.quote(text)} >{written[1]}", options.timeout)
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
            printed, end = shell.run(command[2:], options.timeout)
            if printed and not printed.endswith("\n"):
                printed += "\n"
            ending = "" if end == 0 else f"[exit status {end}]\n" if isinstance(end, int) else f"[{end}]\n"
            shown += command + "\n" + printed + ending

        def masked(printed):
            return re.sub(vary[1], "~", printed) if vary else printed

        if HOST.search(masked(text)):
            print(f"{options.readme}:{line}: the name of a host must vary: <!-- vary: REGEX -->")
        elif masked(shown) == masked(text) and shown:
            return match[0]
        different += 1
        print(f"{options.readme}:{line}: this block prints something else:")
        sys.stdout.writelines(
            difflib.unified_diff(masked(text).splitlines(True), masked(shown).splitlines(True), "README", "printed"))
        start = match.start("text") - match.start()
        return match[0][:start] + shown + match[0][start + len(text):]

    with temporary, clean_clone.Shell(clone) as shell:
        updated = BLOCK.sub(check, source)
    print(f"{options.readme}: {executed} commands executed, {different} blocks differ; {left} blocks not executed, "
          f"{unexplained} without a reason")
    if options.update:
        options.readme.write_text(updated)
        return 1 if unexplained else 0
    return 1 if different or unexplained or not executed else 0


sys.exit(main())
