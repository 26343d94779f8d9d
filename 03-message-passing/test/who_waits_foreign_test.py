"""who_waits on programs that are not ours: OSU's micro-benchmarks, with one mistake put into one call of one rank.

usage: who_waits_foreign_test.py WHO_WAITS [open-mpi|mpich]

The sources are taken from the folder in MULTINODE_FOREIGN_SOURCES, or from ../shared/sources beside this repository. Each
mistake must be explained with its cause, rank and call, and a rank that is only late must not be accused.
Exit status: 0 every row right, 1 a row wrong, 77 nothing to run.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# program, ranks, arguments, mistake, cause, what the explanation says
ROWS = [
    ("pt2pt/osu_latency", 2, "", "1 MPI_Send 50 skip", "deadlock", "rank 1 does not send to 0"),
    ("pt2pt/osu_latency", 2, "", "0 MPI_Send 50 skip", "deadlock", "rank 0 does not send to 1"),
    ("pt2pt/osu_latency", 2, "", "1 MPI_Send 50 tag", "deadlock", "it has sent one with tag 2, and 0 wants tag 1"),
    ("pt2pt/osu_latency", 2, "", "0 MPI_Recv 70 tag", "deadlock", "it has sent one with tag 1, and 0 wants tag 2"),
    ("pt2pt/osu_latency", 2, "", "1 MPI_Recv 70 exit", "ended", "rank 1 is gone: exit status 0"),
    ("pt2pt/osu_latency", 2, "", "1 MPI_Send 70 abort", "ended", "rank 1 is gone: killed by signal 6"),
    ("pt2pt/osu_latency", 2, "", "1 MPI_Send 70 stop", "late", r"rank 1 .* is sleeping outside of MPI"),
    ("pt2pt/osu_latency", 2, "", "0 MPI_Barrier 2 skip", "deadlock", "rank 1 is in MPI_Barrier"),
    ("pt2pt/osu_bw", 2, "", "0 MPI_Isend 200 tag", "deadlock", "rank 0 does not send to 1"),
    ("pt2pt/osu_bw", 2, "", "1 MPI_Irecv 200 tag", "deadlock", "rank 0 does not send to 1"),
    ("pt2pt/osu_bibw", 2, "", "1 MPI_Isend 200 stop", "late", r"rank 1 .* is sleeping"),
    ("pt2pt/osu_multi_lat", 4, "", "3 MPI_Send 50 skip", "deadlock", "rank 3 does not send to 1"),
    ("pt2pt/osu_mbw_mr", 4, "", "1 MPI_Isend 100 tag", "deadlock", "rank 1 does not send to 3"),
    ("collective/osu_barrier", 4, "", "2 MPI_Barrier 100 skip", "mismatch", "rank 2: MPI_Reduce"),
    ("collective/osu_barrier", 4, "", "2 MPI_Barrier 100 stop", "late", r"rank 2 .* is sleeping"),
    ("collective/osu_allreduce", 4, "", "2 MPI_Allreduce 100 skip", "mismatch", "rank 2: MPI_"),
    ("collective/osu_allreduce", 4, "", "1 MPI_Allreduce 40 barrier", "mismatch", "rank 1: MPI_Barrier"),
    ("collective/osu_allreduce", 4, "", "3 MPI_Allreduce 100 exit", "ended", "rank 3 is gone: exit status 0"),
    ("collective/osu_bcast", 4, "", "0 MPI_Bcast 100 skip", "mismatch", "rank 0: MPI_"),
    ("collective/osu_bcast", 4, "", "1 MPI_Bcast 60 barrier", "mismatch", "rank 1: MPI_Barrier"),
    ("collective/osu_reduce", 4, "", "2 MPI_Reduce 100 root", "mismatch", r"rank 2: MPI_Reduce, .* root 1"),
    ("collective/osu_gather", 4, "", "3 MPI_Gather 100 root", "mismatch", r"rank 3: MPI_Gather, .* root 1"),
    ("collective/osu_scatter", 4, "", "3 MPI_Scatter 100 root", "mismatch", r"rank 3: MPI_Scatter, .* root 1"),
    ("collective/osu_alltoall", 4, "", "2 MPI_Alltoall 40 stop", "late", r"rank 2 .* is sleeping"),
    ("collective/osu_ibarrier", 4, "", "2 MPI_Ibarrier 40 stop", "late", r"rank 2 .* is sleeping"),
    # Right, but late.
    ("pt2pt/osu_latency", 2, "", "1 MPI_Send 50 compute", "", "rank 1 .* computing, not waiting"),
    ("pt2pt/osu_bw", 2, "", "1 MPI_Irecv 100 sleep", "", "rank 1 .* is sleeping"),
    ("collective/osu_allreduce", 4, "", "2 MPI_Allreduce 100 compute", "", "rank 2 .* computing, not waiting"),
    ("collective/osu_bcast", 4, "", "0 MPI_Bcast 100 sleep", "", "rank 0 .* is sleeping"),
    ("collective/osu_allgather", 4, "", "3 MPI_Allgather 40 compute", "", "rank 3 .* computing, not waiting"),
]
COMPILERS = {"open-mpi": ("mpicc", "mpirun"), "mpich": ("mpicc.mpich", "mpirun.mpich")}


def build(folder, sources, compiler):
    utility = [str(p) for p in sources.glob("util/osu_util.c")]
    programs = {}
    for name in sorted({row[0] for row in ROWS}):
        part, stem = name.split("/")
        source = sources / "mpi" / f"{name}.c"
        common = source.parent / ("osu_pt2pt.c" if part == "pt2pt" else "osu_coll.c")
        parts = [common] if f"<{common.stem}.h>" in source.read_text() or f'"{common.stem}.h"' in source.read_text() else []
        programs[name] = folder / stem
        subprocess.run([compiler, "-w", "-O1", "-DFIELD_WIDTH=18", "-DFLOAT_PRECISION=2", "-I", sources / "util", "-I", common.parent,
                        source, *parts, *utility, "-o", programs[name], "-lm", "-lpthread"], check=True)
    library = folder / "mistakes.so"
    subprocess.run([compiler, "-w", "-shared", "-fPIC", HERE / "mistakes.c", "-o", library, "-ldl"], check=True)
    return programs, library


def explain(row, who_waits, programs, library, mpirun, folder):
    name, ranks, arguments, mistake, cause, says = row
    lines = folder / "lines.json"
    lines.unlink(missing_ok=True)
    program = f"LD_PRELOAD={library}:$LD_PRELOAD exec {programs[name]} {arguments}"
    limit = "40" if cause == "late" else "900"  # a program that is late by the mistake `stop` never ends
    result = subprocess.run(["timeout", limit, mpirun, "-n", str(ranks), who_waits, "--after", "2", "--json", str(lines), "--", "sh", "-c", program],
                            env={**os.environ, "MISTAKE": mistake, "HOME": str(folder)}, stdin=subprocess.DEVNULL, capture_output=True,
                            text=True, check=False)
    found = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    text = "\n".join("\n".join(one["lines"]) for one in found)
    if not found or not re.search(says, text):
        return f"it does not say '{says}': {text or result.stderr}"
    if cause in ("", "late"):  # nothing is proved
        if any(one["certain"] for one in found):
            return f"it accuses: {text}"
        return "" if cause == "late" or result.returncode == 0 else f"exit status {result.returncode}: {result.stderr}"
    if found[-1]["cause"] != cause:
        return f"the cause is '{found[-1]['cause']}', not '{cause}': {text}"
    return "" if result.returncode else "exit status 0"


def main():
    who_waits, kind = sys.argv[1], (sys.argv[2:] or ["open-mpi"])[0]
    compiler, mpirun = COMPILERS[kind]
    place = pathlib.Path(os.environ.get("MULTINODE_FOREIGN_SOURCES", HERE.parents[1].parent / "shared" / "sources"))
    archive = place / "osu-micro-benchmarks.tar.xz"
    if not archive.exists() or not shutil.which(compiler):
        print(f"{archive} or {compiler} is not here: get forresti/osu-micro-benchmarks")
        return 77
    wrong = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        with tarfile.open(archive) as tar:
            tar.extractall(folder)
        programs, library = build(folder, folder / "osu-micro-benchmarks", compiler)
        for row in ROWS:
            problem = explain(row, who_waits, programs, library, mpirun, folder)
            wrong += bool(problem)
            print(f"{'WRONG' if problem else 'right'}  {row[0]}, {row[3]}{': ' + problem if problem else ''}", flush=True)
    print(f"{len(ROWS) - wrong} of {len(ROWS)} right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
