"""What who_waits costs: programs with and without it, in turn.

usage: bash ci/test-cluster/hosts with 2 --here -- python3 03-message-passing/test/who_waits_overhead.py BUILD [ROUNDS [WHO_WAITS]]

Prints, for each program, the median of what the rounds add, and the range of the middle half of them. Two ranks: on this
machine, or one on each of two test hosts. WHO_WAITS is another build's, to be compared. Needs OSU's sources, as
who_waits_programs_test.py does.
"""
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

import who_waits_programs_test
from who_waits_programs_test import foreign_test

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE, HOSTS = ["mpirun", "-n"], ["mpirun", "--mca", "btl", "tcp,self", "-H", "node0:1,node1:1", "-n"]


def after(size, column):
    """The number in this column of the row of a size."""
    return lambda text: float(re.search(rf"^ *{size}( +\S+){{{column}}}", text, re.M)[1])


def kilobytes(pid, what):
    return int(re.search(rf"{what}:\s*(\d+)", pathlib.Path(f"/proc/{pid}/status").read_text())[1])


def children(pid):
    return subprocess.check_output(["pgrep", "-P", str(pid)], text=True).split()


def main():
    build, rounds = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 15
    who_waits = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else build / "03-message-passing/who_waits"
    programs = build / "03-message-passing/test/waiting_programs"
    reduce = [build / "02-mpi/all_reduce_perf", *"-b 8 -e 8 -n 20000 -w 1000".split()]
    with tempfile.TemporaryDirectory(dir=build) as folder:
        environment = {**foreign_test.ENVIRONMENT, "HOME": folder}

        def output(where, *command):
            prefix = ["bash", ROOT / "ci/test-cluster/hosts", "run", "node0"] if where is HOSTS else []
            command = [str(part) for part in (*prefix, *where, *command)]
            return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, timeout=600, check=True).stdout

        allreduce = pathlib.Path(folder) / "osu_allreduce"
        who_waits_programs_test.build_osu("collective/osu_allreduce", allreduce, foreign_test.folder_of("osu-micro-benchmarks", build), "mpicc")
        osu = [allreduce, "-m", "8", "-i", "20000"]
        for name, where, ranks, program, number in [  # name, where, ranks, program, what it prints: ns, or us
                ("a call of MPI_Allreduce alone, ns", HERE, 1, [programs, "calls"], lambda text: float(text.split()[0])),
                ("a call of a message to itself, ns", HERE, 1, [programs, "calls"], lambda text: float(text.split()[1])),
                ("osu_allreduce, 8 B, one machine, us", HERE, 2, osu, after(8, 1)),
                ("osu_allreduce, 8 B, between hosts, us", HOSTS, 2, osu, after(8, 1)),
                ("all_reduce_perf, 8 B, one machine, us", HERE, 2, reduce, after(8, 5)),
                ("all_reduce_perf, 8 B, between hosts, us", HOSTS, 2, reduce, after(8, 5))]:
            plain, added = [], []
            for _ in range(rounds):
                plain.append(number(output(where, ranks, *program)))
                added.append(number(output(where, ranks, who_waits, "--", *program)) - plain[-1])
            middle, quarter = statistics.median(plain), statistics.quantiles(added)
            print(f"{name}: {middle:.3g} without, {statistics.median(added):+.3g} ({quarter[0]:+.3g} to {quarter[2]:+.3g}), "
                  f"{100 * statistics.median(added) / middle:+.1f} %; load {os.getloadavg()[0]:.1f}", flush=True)
        with subprocess.Popen([*HERE, "2", who_waits, "--", programs, "* sleep 4"], stdout=subprocess.DEVNULL, env=environment) as run:
            time.sleep(3)
            watchers = children(run.pid)
            print("memory per rank: {} KiB of who_waits, {} KiB that it shares with the program".format(
                max(kilobytes(pid, "VmRSS") for pid in watchers),
                max(kilobytes(pid, "RssShmem") for watcher in watchers for pid in children(watcher))))


if __name__ == "__main__":
    main()
