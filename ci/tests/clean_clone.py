"""What the tests of printed commands share: a copy of the repository, and a fresh shell whose commands have a limit."""
import os
import pathlib
import pwd
import re
import select
import shlex
import shutil
import signal
import subprocess
import time


def clone(root, build, folder):
    """Copies the repository into `folder`, without its build folders. `build`, unless it is None, is build/release there."""
    def ignored(where, names):
        return [name for name in names if pathlib.Path(where) == root and (name == ".git" or name.startswith("build"))]

    shutil.copytree(root, folder, ignore=ignored, symlinks=True)
    if build:
        (folder / "build").mkdir()
        (folder / "build/release").symlink_to(build)
    return folder


def environment():
    """The variables that a fresh shell begins with."""
    user = pwd.getpwuid(os.getuid())
    return {"HOME": user.pw_dir, "USER": user.pw_name, "TERM": "dumb", "LANG": "C.UTF-8",
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


class Shell:
    """A bash that runs one command after the other, and nothing more once it has ended."""

    END = re.compile(rb"\x1e(\d+) ([^\x1e]*)\x1e")  # of a command: its exit status and the shell's folder

    def __init__(self, folder, variables=None, command=("bash", "--norc", "--noprofile")):
        self.folders = set()
        self.ended = False
        self.process = subprocess.Popen(command, cwd=folder,
                                        env=environment() if variables is None else variables, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)

    def __enter__(self):
        return self

    def run(self, command, limit):
        """What `command` prints, and its exit status; or, in place of it, why it has none."""
        if self.ended:
            return "", "not run: the shell has ended"
        line = f"eval {shlex.quote(command)} </dev/null; printf '\\036%d %s\\036' $? \"$PWD\"\n"
        self.process.stdin.write(line.encode())
        self.process.stdin.flush()
        deadline = time.monotonic() + limit
        printed = b""
        while not (end := self.END.search(printed)):
            remaining = max(0, deadline - time.monotonic())
            in_time = select.select([self.process.stdout], [], [], remaining)[0]
            chunk = os.read(self.process.stdout.fileno(), 65536) if in_time else b""
            printed += chunk
            if not chunk:
                self.ended = True
                break
        text = self.END.sub(b"", printed).decode(errors="replace")
        if self.ended:
            return text, "the shell has ended" if in_time else f"no end after {limit} s"
        self.folders.add(pathlib.Path(os.fsdecode(end[2])))
        return text, int(end[1])

    def __exit__(self, *_):
        """Ends what still runs, and removes the folders of mktemp -d that the commands went to."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.communicate()
        for folder in self.folders:
            if folder.parent == pathlib.Path("/tmp") and folder.name.startswith("tmp."):
                shutil.rmtree(folder, ignore_errors=True)


def run(commands, limit, folder, variables=None):
    """Runs commands in one shell, up to the first that fails: the last one's exit status, and what all printed."""
    output, end = "", 0
    with Shell(folder, variables) as shell:
        for command in commands:
            printed, end = shell.run(command, limit)
            output += printed
            if end != 0:
                break
    return end, output
