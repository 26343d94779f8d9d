#!/usr/bin/env python3
"""Trainings that something disturbs at a random moment: a rank, an agent or a launcher is killed or stopped, a signal
comes, a checkpoint is damaged, a second run wants the same folder. Each must end, leave no process and no file, and
resume from its checkpoints to the parameters of an undisturbed training. Prints a line per run; --seed SEED --runs 1 repeats
one. Exit status: 0 all were right, 1 not."""
import argparse
import concurrent.futures
import os
import pathlib
import random
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

LIMIT = 120  # seconds until a run that does not end counts as a hang
RANKS = 3


def write_data(folder):
    """A small data set in the format of Fashion-MNIST, of random images."""
    folder.mkdir()
    numbers = random.Random(1)
    for name, count in (("train", 600), ("t10k", 100)):
        images = struct.pack(">IIII", 2051, count, 28, 28) + numbers.randbytes(count * 784)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(images)
        labels = struct.pack(">II", 2049, count) + bytes(numbers.randrange(10) for _ in range(count))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(labels)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Run:
    """One training, with its folder and the processes that launch it."""

    def __init__(self, build, data, folder, starter, epochs):
        self.folder, self.starter, self.launchers = folder, starter, []
        self.checkpoints = folder / "ck"
        self.environment = os.environ | {
            "DISTURBED_RUN": folder.name, "MULTINODE_SECRET": "a secret of this one campaign", "OMP_NUM_THREADS": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
            "OMPI_MCA_orte_tmpdir_base": str(folder)}
        self.program = [build / "04-ddp/fashion_mnist", "--data", data, "--batch-size", "30", "--epochs", str(epochs),
                        "--min-accuracy", "0", "--timeout", "5", "--checkpoint-every", "10"]
        self.mnrun = build / "01-environment/mnrun"

    def start(self):
        program = [*self.program, "--checkpoint", self.checkpoints]
        restarts = ["--max-restarts", "3"]
        if self.starter == "mnrun":
            self.launch(self.mnrun, "--standalone", "--nproc-per-node", RANKS, *restarts, *program)
        elif self.starter == "agents":
            place = ["--nnodes", 2, "--master-addr", "127.0.0.1", "--master-port", free_port(), "--timeout", 60]
            for node in range(2):
                self.launch(self.mnrun, *place, "--node-rank", node, "--nproc-per-node", RANKS - 1 - node, *restarts,
                            *program)
        else:
            self.launch("mpirun", "-n", RANKS, *program)

    def launch(self, *command):
        with open(self.folder / "output", "ab") as output:
            self.launchers.append(subprocess.Popen(list(map(str, command)), env=self.environment, stdin=subprocess.DEVNULL,
                                                   stdout=output, stderr=output, start_new_session=True))

    def processes(self):
        """Of this run: pid -> name."""
        found = {}
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                variables = (process / "environ").read_bytes().split(b"\0")
                if f"DISTURBED_RUN={self.folder.name}".encode() in variables:
                    found[int(process.name)] = (process / "comm").read_text().strip()
            except OSError:
                pass
        return found

    def ranks(self):
        return [pid for pid, name in self.processes().items() if name == "fashion_mnist"]

    def end(self):
        """Waits for the end of the launchers; their statuses."""
        statuses = []
        for launcher in self.launchers:
            try:
                statuses.append(launcher.wait(LIMIT))
            except subprocess.TimeoutExpired:
                if self.starter != "mpirun" or self.ranks():
                    raise
                launcher.kill()  # Open MPI 4.1.4 sometimes hangs in PMIx_server_finalize, when all ranks have ended
                statuses.append(f"hung, and was killed: {launcher.wait()}")
        self.launchers = []
        return statuses

    def kill_all(self):
        while processes := self.processes():
            for pid in processes:
                send(pid, signal.SIGKILL)
            for process in self.launchers:
                process.poll()
            time.sleep(0.05)

    def hash(self):
        found = re.findall(r"parameters: ([0-9a-f]{16}) on every rank", self.output())
        return found[-1] if found else None

    def output(self):
        return (self.folder / "output").read_text(errors="replace")


def send(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def damage(run, numbers):
    """Puts something else in the place of the newest checkpoint."""
    files = sorted(run.checkpoints.glob("step-*.checkpoint"))
    if len(files) < 2:
        return
    newest = files[-1]
    what = numbers.choice(["cut", "bit", "folder", "pipe", "link"])
    content = newest.read_bytes()
    if what == "cut":
        newest.write_bytes(content[: numbers.randrange(len(content))])
    elif what == "bit":
        at = numbers.randrange(len(content))
        newest.write_bytes(content[:at] + bytes([content[at] ^ 1 << numbers.randrange(8)]) + content[at + 1:])
    else:
        newest.unlink()
        {"folder": newest.mkdir, "pipe": lambda: os.mkfifo(newest), "link": lambda: newest.symlink_to("nowhere")}[what]()


def disturb(run, numbers, fault):
    """Returns whether SIGTERM asked the run to end."""
    ranks, agents = run.ranks(), [p.pid for p in run.launchers]
    agent = numbers.choice(agents)
    if fault in ("rank", "two ranks", "damage"):
        for rank in numbers.sample(ranks, min(len(ranks), 1 + (fault == "two ranks"))):
            send(rank, signal.SIGKILL)
        if fault == "damage":
            damage(run, numbers)
    elif fault == "frozen rank":
        send(numbers.choice(ranks) if ranks else agent, signal.SIGSTOP if ranks else signal.SIGKILL)
    elif fault == "agent":
        send(agent, signal.SIGKILL)
    elif fault == "frozen agent":  # a rank dies while it hangs, and then it dies
        send(agent, signal.SIGSTOP)
        for rank in ranks[:1]:
            send(rank, signal.SIGKILL)
        time.sleep(numbers.uniform(0, 2))
        send(agent, signal.SIGKILL)
    elif fault in ("term", "rank, term"):
        if fault == "rank, term" and ranks:
            send(numbers.choice(ranks), signal.SIGKILL)
            time.sleep(numbers.uniform(0, 0.3))
        send(run.launchers[-1].pid, signal.SIGTERM)
        return True
    elif fault == "term all":
        everything = list(run.processes())
        numbers.shuffle(everything)
        for pid in everything:
            send(pid, signal.SIGTERM)
            time.sleep(numbers.uniform(0, 0.01))
        return True
    return False


def one(build, data, folder, seed, epochs, wanted):
    """A disturbed run. Returns the line about it, and what is wrong."""
    numbers = random.Random(seed)
    starter = numbers.choice(["mnrun", "agents", "mpirun"])
    fault = numbers.choice(["rank", "two ranks", "frozen rank", "agent", "frozen agent", "term", "rank, term", "term all",
                            "damage", "second run"])
    folder.mkdir()
    run, wrong, took, statuses = Run(build, data, folder, starter, epochs), [], 0.0, []
    try:
        run.start()
        time.sleep(numbers.uniform(0, 3))
        began, asked = time.monotonic(), False
        if fault == "second run":
            second = subprocess.run([*map(str, run.program), "--checkpoint", str(run.checkpoints)], env=run.environment,
                                    text=True, capture_output=True, timeout=LIMIT, check=False)
            if second.returncode != 0 and "writes there" not in second.stderr:
                wrong.append(f"the second run: {second.returncode} {second.stderr}")
        else:
            asked = disturb(run, numbers, fault)
        statuses = run.end()
        took = time.monotonic() - began
        if asked and took > 3 and not any(statuses):
            wrong.append("a signal was lost")
        until = time.monotonic() + 10
        while (left := run.processes()) and time.monotonic() < until:
            time.sleep(0.05)
        if left:
            wrong.append(f"left: {left}")
        if any(statuses):
            run.start()
            if any(run.end()):
                wrong.append("it did not resume")
        # A second run of one rank that came first has made the checkpoint, and adds in another order.
        if run.hash() != wanted[starter == "mpirun"] and fault != "second run":
            wrong.append(f"parameters {run.hash()}")
        wrong += [f"in the folder: {p.name}" for p in run.checkpoints.iterdir()
                  if not re.fullmatch(r"lock|step-\d+\.checkpoint(\.damaged)?", p.name)]
    except subprocess.TimeoutExpired:
        wrong.append(f"a hang: {run.processes()}")
    except (OSError, subprocess.CalledProcessError) as error:
        wrong.append(str(error))
    finally:
        run.kill_all()
    return (f"seed {seed}: {starter}, {fault}: status {statuses}, ended after {took:.1f} s" +
            (f": WRONG: {wrong}\n{run.output()[-3000:]}" if wrong else "")), wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path, help="build folder, such as build/release")
    parser.add_argument("--runs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the next has the next")
    parser.add_argument("--epochs", type=int, default=15, help="of a training; fewer for a slow build")
    options = parser.parse_args()
    seeds = range(options.seed, options.seed + options.runs)
    with tempfile.TemporaryDirectory(prefix="disturbed-runs-") as top:
        top, build = pathlib.Path(top), options.build.resolve()
        write_data(top / "data")
        wanted = []
        for starter in ("mnrun", "mpirun"):
            (top / starter).mkdir()
            run = Run(build, top / "data", top / starter, starter, options.epochs)
            run.start()
            if any(run.end()) or not run.hash():
                sys.exit(f"disturbed_runs: {starter} undisturbed:\n{run.output()}")
            wanted.append(run.hash())
        count = 0
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            runs = [pool.submit(one, build, top / "data", top / str(seed), seed, options.epochs, wanted) for seed in seeds]
            for result in concurrent.futures.as_completed(runs):
                line, wrong = result.result()
                print(line, flush=True)
                count += bool(wrong)
    print(f"{len(runs)} disturbed runs, seeds {seeds[0]} to {seeds[-1]}: {count} wrong")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
