"""What who_waits costs: programs with and without it, in turn.

usage: bash ci/test-cluster/hosts with 2 --here -- python3 tools/who_waits/test/overhead.py BUILD [ROUNDS]

Prints, for each program, the median of what the rounds add, and the range of the middle half of them. Two ranks on two test
hosts, or one rank here. Needs OSU's sources, as programs_test.py does.
"""
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

import programs_test
from programs_test import foreign_programs

HOSTS = pathlib.Path(__file__).resolve().parents[3] / "ci/test-cluster/hosts"
HERE, BETWEEN = ["mpirun", "-n", "1"], ["bash", HOSTS, "run", "node0", "mpirun", "--mca", "btl", "tcp,self", "-H", "node0:1,node1:1", "-n", "2"]


def after(size, column):
    """The number in this column of the row of a size."""
    return lambda text: float(re.search(rf"^ *{size}( +\S+){{{column}}}", text, re.M)[1])


def main():
    build, rounds = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2]) if len(sys.argv) > 2 else 15
    programs = build / "tools/who_waits/test/waiting_programs"
    reduce = [build / "02-mpi/all_reduce_perf", *"-b 8 -e 8 -n 20000 -w 1000".split()]
    with tempfile.TemporaryDirectory(dir=build) as folder:
        def output(*command):
            return subprocess.run([str(part) for part in command], env={**foreign_programs.ENVIRONMENT, "HOME": folder}, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, text=True, timeout=600, check=True).stdout

        osu = pathlib.Path(folder) / "osu_allreduce"
        programs_test.build_osu("collective/osu_allreduce", osu, foreign_programs.folder_of("osu-micro-benchmarks", build), "mpicc")
        for name, where, program, number in [  # what it prints: ns, or us
                ("a call of MPI_Allreduce alone, ns", HERE, [programs, "calls"], lambda text: float(text.split()[0])),
                ("a call of a message to itself, ns", HERE, [programs, "calls"], lambda text: float(text.split()[1])),
                ("osu_allreduce, 8 B, us", BETWEEN, [osu, "-m", "8", "-i", "20000"], after(8, 1)),
                ("all_reduce_perf, 8 B, us", BETWEEN, reduce, after(8, 5))]:
            plain, added = [], []
            for _ in range(rounds):
                plain.append(number(output(*where, *program)))
                added.append(number(output(*where, build / "tools/who_waits/who_waits", "--", *program)) - plain[-1])
            middle, quarter = statistics.median(plain), statistics.quantiles(added)
            print(f"{name}: {middle:.3g} without, {statistics.median(added):+.3g} ({quarter[0]:+.3g} to {quarter[2]:+.3g}), "
                  f"{100 * statistics.median(added) / middle:+.1f} %; load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
