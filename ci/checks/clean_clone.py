"""What the tests of README commands share: a copy of the repository, a fresh environment, a command with a limit."""
import os
import pathlib
import pwd
import shutil
import signal
import subprocess


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


def run(command, environment, limit, folder=None):
    """Exit status and output of a shell command; the status is 124 if it does not end within `limit` seconds."""
    process = subprocess.Popen(["bash", "-c", command], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        output = process.communicate(timeout=limit)[0]
        status = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, status = process.communicate()[0], 124
    return status, output.decode(errors="replace")
