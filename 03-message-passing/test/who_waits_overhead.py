"""What who_waits costs: programs with and without it, in turn.

usage: bash ci/test-cluster/hosts with 2 --here -- python3 03-message-passing/test/who_waits_overhead.py BUILD [ROUNDS]

Prints, for each program, the median of what the rounds add, and the range of the middle half of them. Two ranks: on this
machine, or one on each of two test hosts. Needs OSU's sources, as who_waits_foreign_test.py does.
"""
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import who_waits_foreign_test
from who_waits_foreign_test import foreign_test

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE, HOSTS = ["mpirun", "-n"], ["mpirun", "--mca", "btl", "tcp,self", "-H", "node0:1,node1:1", "-n"]


def output(command, on_hosts, folder):
    if on_hosts:
        command = ["bash", ROOT / "ci/test-cluster/hosts", "run", "node0", *command]
    done = subprocess.run([str(part) for part in command], env={**foreign_test.ENVIRONMENT, "HOME": str(folder)}, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        sys.exit(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout


def after(size, column):
    """The number in this column of the row of a size."""
    return lambda text: float(re.search(rf"^ *{size}( +\S+){{{column}}}", text, re.M)[1])


def kilobytes(pid, what):
    return int(re.search(rf"{what}:\s*(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])


def children(pid):
    return [int(child) for child in subprocess.check_output(["pgrep", "-P", str(pid)], text=True).split()]


def memory(who_waits, program, folder):
    """KiB of the who_waits process, and of its memory that the program has touched."""
    with subprocess.Popen([*HERE, "2", str(who_waits), "--", str(program), "right", "1"], stdout=subprocess.DEVNULL,
                          env={**foreign_test.ENVIRONMENT, "HOME": str(folder)}) as run:
        time.sleep(3)
        watchers = children(run.pid)
        watched = [pid for watcher in watchers for pid in children(watcher)]
        return max(kilobytes(pid, "VmRSS") for pid in watchers), max(kilobytes(pid, "RssShmem") for pid in watched)


def main():
    build, rounds = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 15
    who_waits, programs = build / "03-message-passing/who_waits", build / "03-message-passing/test/waiting_programs"
    reduce = [build / "02-mpi/all_reduce_perf", *"-b 8 -e 8 -n 20000 -w 1000".split()]
    with tempfile.TemporaryDirectory(dir=build) as temporary:
        folder = pathlib.Path(temporary)
        sources = foreign_test.folder_of("osu-micro-benchmarks", build)
        who_waits_foreign_test.build_osu("collective/osu_allreduce", folder / "osu_allreduce", sources, "mpicc")
        allreduce = [folder / "osu_allreduce", "-m", "8", "-i", "20000"]
        rows = [  # name, where, ranks, program, what it prints: ns, or us
            ("a call of MPI_Allreduce alone, ns", HERE, 1, [programs, "calls"], lambda text: float(text.split()[0])),
            ("a call of a message to itself, ns", HERE, 1, [programs, "calls"], lambda text: float(text.split()[1])),
            ("osu_allreduce, 8 B, one machine, us", HERE, 2, allreduce, after(8, 1)),
            ("osu_allreduce, 8 B, between hosts, us", HOSTS, 2, allreduce, after(8, 1)),
            ("all_reduce_perf, 8 B, one machine, us", HERE, 2, reduce, after(8, 5)),
            ("all_reduce_perf, 8 B, between hosts, us", HOSTS, 2, reduce, after(8, 5)),
        ]
        for name, where, ranks, program, number in rows:
            plain, added = [], []
            for _ in range(rounds):
                plain.append(number(output([*where, str(ranks), *program], where is HOSTS, folder)))
                added.append(number(output([*where, str(ranks), who_waits, "--", *program], where is HOSTS, folder)) - plain[-1])
            middle, quarter = statistics.median(plain), statistics.quantiles(added)
            print(f"{name}: {middle:.3g} without, {statistics.median(added):+.3g} ({quarter[0]:+.3g} to {quarter[2]:+.3g}), "
                  f"{100 * statistics.median(added) / middle:+.1f} %; load {os.getloadavg()[0]:.1f}", flush=True)
        print("memory per rank: {} KiB of who_waits, {} KiB that it shares with the program".format(*memory(who_waits, programs, folder)))


if __name__ == "__main__":
    main()
