"""What the stand-ins share: processes on test hosts (ci/test-cluster/hosts), which end when whoever started them does.

The standard input of a login is a leash: when it is closed, the far end ends what it started.
"""
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

LAB = Path(__file__).resolve().parent.parent
OF_THE_TEST_HOSTS = ("HOSTS", "HOSTFILE")  # no launcher or container sets these


def hosts():
    """The names of the test hosts of $MULTINODE_HOSTS."""
    cluster = os.environ.get("MULTINODE_HOSTS") or sys.exit("MULTINODE_HOSTS is not set: see bash ci/test-cluster/hosts --help")
    listed = subprocess.run(["bash", LAB / "hosts", "list"], check=True, stdout=subprocess.PIPE, text=True).stdout
    for line in listed.splitlines():
        name, _, names = line.partition(": ")
        if name == cluster:
            return names.split()
    sys.exit(f"no test hosts '{cluster}' are up: bash ci/test-cluster/hosts up N --name {cluster}")


def login(host):
    """From outside of the test hosts."""
    return ["bash", str(LAB / "hosts"), "run", host]


def on_hosts(scripts):
    """A shell script on each of these hosts, at once."""
    started = {
        host: subprocess.Popen([*login(host), "sh", "-ec", script], stdin=subprocess.DEVNULL)
        for host, script in scripts.items()
    }
    for host, process in started.items():
        if process.wait():
            sys.exit(f"{host} cannot be prepared: {scripts[host]}")


def mounts(volumes):
    """Shell commands that mount folders below $STAND_IN_STORAGE; `volumes` has (folder, mount point)."""
    commands = ["mountpoint -q /mnt || mount -t tmpfs tmpfs /mnt"]
    for name, point in volumes:
        folder = Path(os.environ["STAND_IN_STORAGE"]) / name
        folder.mkdir(parents=True, exist_ok=True)
        commands.append(f"umount {point} 2>/dev/null || mkdir -p {point}; mount --bind {quote(str(folder))} {point}")
    return commands


def variables(parser, option, given, between="="):
    """The texts NAME=VALUE of an option as a dictionary."""
    for text in given:
        if not re.fullmatch(rf"[^\s{between}]+{between}.*", text, re.DOTALL):
            parser.error(f"{option}: '{text}' is not NAME{between}VALUE")
    return dict(text.split(between, 1) for text in given)


def container(argv):
    """argv, in its own process space: whatever it leaves running ends with it."""
    return ["unshare", "--pid", "--fork", "--kill-child=KILL", "--mount-proc", *argv]


def start_pod(name, host, argv, environment):
    """argv in a container on that host; run_in_pod finds it by its name, and its environment in /run/NAME.json."""
    return start(login(host), ["sh", "-c", f'echo $$ >/run/{name}.pid && exec "$@"', "sh", *container(argv)], environment)


def run_in_pod(name, host, argv):
    """The exit status of argv, with the environment and among the processes of a container of start_pod."""
    enter = f'exec nsenter --target "$(pgrep -P "$(cat /run/{name}.pid)")" --pid --mount "$@"'
    argv = ["sh", "-c", enter, "sh", "sh", "-c", 'cd / && exec "$@"', "sh", *argv]
    return wait([start(login(host), argv, {}, environment_file=f"/run/{name}.json")])


def start(login_words, argv, environment, folder="/", environment_file="", output=None):
    far_end = {"argv": argv, "environment": environment, "folder": folder, "environment_file": environment_file}
    words = [sys.executable, __file__, json.dumps(far_end)]
    if login_words[0] == "ssh":
        words = [f"exec {subprocess.list2cmdline(words[:2])} {quote(words[2])}"]
    return subprocess.Popen([*login_words, *words], stdin=subprocess.PIPE, stdout=output, stderr=output)


def quote(text):
    return "'" + text.replace("'", "'\\''") + "'"


def wait(processes, seconds=None, first_decides=False):
    """The status of all: the first that is not 0, which ends the others.

    With first_decides the end of the first process ends the others, too.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    deadline = time.monotonic() + seconds if seconds else None
    failed = {}  # in the order of their ends
    try:
        while True:
            running = [process for process in processes if process.poll() is None]
            failed.update({id(process): process.returncode for process in processes if process.returncode})
            if not running or failed or (first_decides and processes[0] not in running):
                return next(iter(failed.values()), 0)
            if deadline and time.monotonic() > deadline:
                print(f"after {seconds} s the time is over", file=sys.stderr)
                return 124
            time.sleep(0.02)
    finally:
        for process in processes:
            process.stdin.close()
        for process in processes:
            process.wait()


def far_end(argv, environment, folder, environment_file):
    mine = {name: value for name, value in os.environ.items() if name not in OF_THE_TEST_HOSTS}
    if environment_file:
        mine |= json.loads(Path(environment_file).read_text())["environment"]
    child = subprocess.Popen(argv, env=mine | environment, cwd=folder, stdin=subprocess.DEVNULL, start_new_session=True)

    def end(number):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            pass

    def leash():
        while os.read(0, 1):
            pass
        end(signal.SIGTERM)
        time.sleep(1)
        end(signal.SIGKILL)

    threading.Thread(target=leash, daemon=True).start()
    status = child.wait()
    end(signal.SIGKILL)
    sys.exit(status if status >= 0 else 128 - status)


if __name__ == "__main__":
    far_end(**json.loads(sys.argv[1]))
