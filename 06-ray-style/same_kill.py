#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same binary, the same kill: fashion_mnist with 4 ranks on three test hosts, started by each launcher in turn.

usage: same_kill.py --build FOLDER [--kills N] [--launchers NAME,...] [--faults NAME,...]

Faults: `process` kills a rank (SIGKILL), `freeze` stops a rank (SIGSTOP), `node` kills all processes of a host. The first
two hit one training N times, at random steps; the last hits N trainings once. The parameters must in the end have the
hash of an undisturbed training under the same launcher. "seen" is the launcher's own line about the failure; "again" is
the first step of the next start. Both count from the kill. A launcher that is not
installed is left out.
Exit status: 0 all hashes are the same, 1 not, 2 bad command line, 77 test hosts are impossible here.
"""
import argparse
import os
import pathlib
import queue
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
CACHE = pathlib.Path.home() / ".cache/multinode"
RAY = pathlib.Path(os.environ.get("MULTINODE_RAY", CACHE / "ray")) / "bin"
TORCH = pathlib.Path(os.environ.get("MULTINODE_TORCH", CACHE / "torch")) / "bin"
HOSTS = ["node0", "node1", "node2"]  # node0 has the head, the store or the controller, and is not killed
LIMIT = 240  # seconds for anything to happen
EVERY = 10  # steps between checkpoints
TIMEOUT = 5  # --timeout of the program: its own deadline for a silent rank


def on(host, *command):
    return subprocess.Popen(["bash", ROOT / "ci/test-cluster/hosts", "run", host, *map(str, command)], stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")


def output(host, *command):
    process = on(host, *command)
    text = process.communicate(timeout=LIMIT)[0]
    if process.returncode:
        raise RuntimeError(f"{host}: {' '.join(map(str, command))}: exit status {process.returncode}\n{text}")
    return text


def processes(namespace):
    """Those in a host's process namespace, but for its process 1, the ssh server."""
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(folder / "ns/pid") == namespace and not re.search(r"NSpid:.*\t1\n", (folder / "status").read_text()):
                yield int(folder.name), (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            pass


class Launcher:
    has_spare = True  # the third host takes the place of one that is lost; else that comes back at once
    restarted = "images to learn from"  # what is printed before the training continues

    def __init__(self, build, folder):
        self.build, self.folder = build, folder

    def start(self): pass  # what stays between trainings
    def stop(self): pass
    def bring_back(self, host): pass  # after its processes were killed


class Ray(Launcher):
    needs, seen = RAY / "ray", r"^failure \d+: "
    join = ["--address", "node0:6379"]

    def start(self):
        for i, host in enumerate(HOSTS):
            self.node(host, *(["--head", "--port", "6379", "--include-dashboard", "false"] if i == 0 else self.join))

    def alone(self):  # without the user's ~/.ray: with a token there, a second node cannot join this cluster
        return ["env", f"HOME={self.folder}"]

    def node(self, host, *options):
        address = f"10.77.0.{HOSTS.index(host) + 1}"
        output(host, *self.alone(), RAY / "ray", "start", *options, "--node-ip-address", address, "--num-cpus", 2,
               "--num-gpus", 0, "--disable-usage-stats")

    def bring_back(self, host):
        self.node(host, *self.join)

    def stop(self):
        for host in reversed(HOSTS):
            output(host, RAY / "ray", "stop", "--force")

    def train(self, program):
        return [on("node0", *self.alone(), RAY / "python", ROOT / "06-ray-style/train_on_ray.py", "--num-workers", 4, "--max-failures", 100,
                   *program)]


class Torchrun(Launcher):
    needs, seen = TORCH / "torchrun", r"failed \(exitcode"
    has_spare = False
    round = 0

    def agent(self, host):
        return on(host, *self.command)

    def train(self, program):
        Torchrun.round += 1
        self.command = [TORCH / "torchrun", "--nnodes", "2", "--nproc-per-node", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint",
                        f"node0:{29400 + self.round}", "--rdzv-id", self.round, "--max-restarts", 100, "--no-python", *program]
        return [self.agent(host) for host in HOSTS[:2]]  # with a third agent, torchrun starts the ranks again and again

    def bring_back(self, host):
        return self.agent(host)


class Mnrun(Launcher):
    needs, seen = "01-environment/mnrun", r"; start \d+ of \d+ more|is gone: lost"
    round = 0

    def train(self, program):
        Mnrun.round += 1
        command = [self.build / self.needs, "--nnodes", 2, "--nproc-per-node", 2, "--master-addr", "node0", "--master-port",
                   29500 + self.round, "--max-restarts", 100]
        return [on(host, *command, "--node-rank", i, *program) for i, host in enumerate(HOSTS[:2])]


class Cluster(Launcher):
    needs, seen = "06-ray-style/cluster", r"will start again: "

    def start(self):
        self.state = self.folder / "state"
        self.node("node0", "--head", "--host", "node0")
        self.cluster("status", "--wait-for-nodes", 1)
        for host in HOSTS[1:]:
            self.bring_back(host)
        self.cluster("status", "--wait-for-nodes", len(HOSTS))

    def node(self, host, *options):  # stays in the foreground
        on(host, self.build / self.needs, "start", *options, "--num-cpus", 2, "--state", self.state)

    def cluster(self, command, *options):
        output("node0", self.build / self.needs, command, *options, "--state", self.state)

    def bring_back(self, host):
        self.node(host)

    def stop(self):
        self.cluster("stop")

    def train(self, program):
        return [on("node0", self.build / self.needs, "run", "--state", self.state, "--num-workers", 4, "--max-failures", 100,
                   "--", *program)]


class Slurm(Launcher):
    needs, seen = "07-rdma-tuning/rdma_tune", r": back into the queue"  # which the job script starts

    def train(self, program):
        logs = pathlib.Path(program[-1]).parent  # the script adds --checkpoint LOGS/checkpoints
        # node0 runs the script itself. RESTARTS: how often it puts the job back into the queue.
        job = output("node0", "env", f"BUILD={self.build}", f"LOGS={logs}", f"OPTIONS={' '.join(map(str, program[1:-2]))}",
                     "RESTARTS=100", "sbatch", "--parsable", "--nodelist=node0", f"--output={logs}/job.out",
                     ROOT / "jobscripts/slurm/04-ddp.sbatch").strip()
        # job.out repeats the log of each start when that has ended.
        follow = f"tail -s 0.02 -qF {logs}/rank-0.start-{{0..100}}.log 2>/dev/null & " \
                 f"tail -s 0.02 -F {logs}/job.out 2>/dev/null | grep --line-buffered -E 'back into|error|srun:' & " \
                 f"bash {ROOT}/ci/test-cluster/slurm job {job}; sleep 1; kill $(jobs -p)"
        return [on("node0", "bash", "-c", follow)]

    def bring_back(self, host):  # the key of munged is still in /run
        output(host, "bash", "-c", "munged --key-file=/run/munge/key --seed-file=/run/munge/seed --log-file=/run/munge/log "
               "--num-threads=2 --force 2>/dev/null; slurmd")


LAUNCHERS = {"Ray": Ray, "torchrun": Torchrun, "mnrun": Mnrun, "Slurm": Slurm, "cluster": Cluster}
STEP = r"(?<!after )step (\d+) of \d+"


class Training:
    def __init__(self, launcher, folder, steps):
        self.lines, self.queue, self.running, self.launcher = [], queue.Queue(), 0, launcher
        self.marker = str(folder / "checkpoints")
        self.follow(launcher.train([launcher.build / "04-ddp/fashion_mnist", "--backend", "gloo", "--epochs", 1, "--batch-size", 64,
                                    "--steps", steps, "--log-every", 1, "--checkpoint-every", EVERY, "--timeout", TIMEOUT,
                                    "--checkpoint", folder / "checkpoints"]))

    def follow(self, processes):
        for process in processes:
            self.running += 1
            threading.Thread(target=self.read, args=(process,), daemon=True).start()

    def read(self, process):
        for line in process.stdout:
            self.queue.put((time.monotonic(), line))
        process.wait()
        self.queue.put((time.monotonic(), None))

    def next(self, pattern):
        """The time of the next line with `pattern`, and its match; None in its place if all processes ended before."""
        deadline = time.monotonic() + LIMIT
        while True:
            try:
                at, line = self.queue.get(timeout=max(0, deadline - time.monotonic()))
            except queue.Empty:
                raise RuntimeError(f"no '{pattern}' after {LIMIT} s:\n" + "".join(self.lines[-40:])) from None
            if line is None:
                self.running -= 1
                if self.running == 0:
                    return at, None
                continue
            self.lines.append(line)
            if match := re.search(pattern, line):
                return at, match

    def wait_for(self, pattern):
        at, match = self.next(pattern)
        if not match:
            raise RuntimeError(f"ended without '{pattern}':\n" + "".join(self.lines[-40:]))
        return at, match

    def reach(self, more):
        """Waits until `more` steps after the first that is seen."""
        first = None
        while True:
            step = int(self.wait_for(STEP)[1][1])
            first = step if first is None else first
            if step >= first + more:
                return

    def hash(self):
        return self.wait_for(r"parameters: ([0-9a-f]{16}) on every rank")[1][1]

    def end(self):
        """Waits for the end of all processes; after 20 s kills what is left, such as an agent that has no work."""
        deadline = time.monotonic() + 20
        while self.running and time.monotonic() < deadline:
            try:
                self.running -= self.queue.get(timeout=0.1)[1] is None
            except queue.Empty:
                pass
        for namespace in self.launcher.namespaces.values():
            for pid, command in processes(namespace):
                if self.marker in command:
                    os.kill(pid, signal.SIGKILL)

    def ranks(self):
        """The process and the host of each rank."""
        found = [(pid, host) for host, namespace in self.launcher.namespaces.items() for pid, command in processes(namespace)
                 if command[0].endswith("fashion_mnist") and self.marker in command]
        if len(found) != 4:
            time.sleep(5)
            lines = [line for _, line in list(self.queue.queue) if line]
            raise RuntimeError(f"{len(found)} ranks, not 4: {found}\n" + "".join([*self.lines[-20:], *lines[-40:]]))
        return found

    def fault(self, name):
        """Does it, and returns when it began and the host that has to be brought back."""
        pid, host = random.choice([(pid, host) for pid, host in self.ranks() if name != "node" or host != "node0"])
        begin = time.monotonic()
        if name == "node":
            while left := list(processes(self.launcher.namespaces[host])):
                for pid, _ in left:
                    try:
                        os.kill(pid, signal.SIGKILL)
                    except ProcessLookupError:
                        pass
            return begin, host
        os.kill(pid, signal.SIGKILL if name == "process" else signal.SIGSTOP)
        return begin, None


def cell(launcher, fault, kills, folder, undisturbed):
    """Seconds until the fault was seen and until the training went on, and for each training whether the hash is the same;
    None where the run ended instead of starting again."""
    seen, again, same = [], [], []
    trainings, per_training = (kills, 1) if fault == "node" else (1, kills)
    for i in range(trainings):
        (folder / f"{fault}{i}").mkdir()
        training = Training(launcher, folder / f"{fault}{i}", steps_for(per_training))
        for _ in range(per_training):
            training.reach(random.randint(2 * EVERY + 2, 3 * EVERY))
            begin, host = training.fault(fault)
            if host and not launcher.has_spare:
                training.follow([launcher.bring_back(host)])
            seen.append(training.wait_for(launcher.seen)[0] - begin)
            ended = training.next(launcher.restarted)[1] is None
            if not ended:
                again.append(training.wait_for(STEP)[0] - begin)
            print(f"  {seen[-1]:.2f} s, " + ("ended" if ended else f"{again[-1]:.2f} s"), flush=True)
        same.append(None if ended else training.hash() == undisturbed[per_training])
        training.end()
        if host and launcher.has_spare:
            launcher.bring_back(host)
    return seen, again, same


def steps_for(kills):
    return 40 * kills + 60


def spread(values):
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})" if values else "–"


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--launchers", default=",".join(LAUNCHERS))
    parser.add_argument("--faults", default="process,freeze,node")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    build, names = options.build.resolve(), options.launchers.split(",")
    if unknown := [name for name in names if name not in LAUNCHERS]:
        parser.error(f"unknown launcher {unknown[0]}: there are {', '.join(LAUNCHERS)}")

    if not options.inside:  # each launcher on hosts of its own
        status = 0
        for name in names:
            if not (build / LAUNCHERS[name].needs).exists():
                print(f"{name} is left out: there is no {LAUNCHERS[name].needs}", flush=True)
                continue
            cluster = ["bash", ROOT / "ci/test-cluster" / ("slurm" if name == "Slurm" else "hosts"), "with", "3", "--here"]
            cluster += [word for folder in (build, RAY, TORCH) if folder.exists() for word in ("--share", folder.parent)]
            done = subprocess.run([*cluster, "--", sys.executable, __file__, *sys.argv[1:], "--launchers", name, "--inside"], check=False)
            status = max(status, done.returncode)
        return status

    with tempfile.TemporaryDirectory(prefix="same_kill.", dir=build) as folder:
        launcher = LAUNCHERS[names[0]](build, pathlib.Path(folder))
        launcher.namespaces = {host: output(host, "readlink", "/proc/self/ns/pid").strip() for host in HOSTS}
        launcher.start()
        try:
            undisturbed = {}  # hashes, by the number of faults in a training
            for kills in {1, options.kills}:
                (launcher.folder / f"undisturbed{kills}").mkdir()
                training = Training(launcher, launcher.folder / f"undisturbed{kills}", steps_for(kills))
                undisturbed[kills] = training.hash()
                training.end()
            status = 0
            for fault in options.faults.split(","):
                seen, again, same = cell(launcher, fault, options.kills, launcher.folder, undisturbed)
                counts = {"the same": same.count(True), "WRONG": same.count(False), "the run ended": same.count(None)}
                verdict = ", ".join(f"{text} ({count} of {len(same)})" for text, count in counts.items() if count)
                print(f"| {names[0]} | {fault} | {len(seen)} | {spread(seen)} | {spread(again)} | {verdict} |", flush=True)
                status |= False in same
            return status
        finally:
            launcher.stop()


sys.exit(main())
