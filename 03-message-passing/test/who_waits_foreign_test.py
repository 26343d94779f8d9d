"""who_waits on programs that are not ours, with one mistake put into one call of one rank: OSU's micro-benchmarks, and
NVIDIA's examples of NCCL and nccl-tests on emulated GPUs.

usage: who_waits_foreign_test.py BUILD open-mpi|open-mpi-5|mpich|nccl|mnrun|torchrun|srun|srun-mpich|srun-nccl

The sources are taken from the folder in MULTINODE_FOREIGN_SOURCES, or from ../shared/sources beside this repository. Each
mistake must be explained with its cause, rank and call, and a rank that is only late must not be accused. The rows of srun
need Slurm: bash ci/test-cluster/slurm with 2 -- python3 who_waits_foreign_test.py ...
Exit status: 0 every row right, 1 a row wrong, 77 nothing to run.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "common/emulated-gpu/test"))
import foreign_test  # pylint: disable=wrong-import-position

# program, ranks, mistake, cause, what the explanation says
OSU = [
    ("pt2pt/osu_latency", 2, "1 MPI_Send 50 skip", "deadlock", "rank 1 does not send to 0"),
    ("pt2pt/osu_latency", 2, "0 MPI_Send 50 skip", "deadlock", "rank 0 does not send to 1"),
    ("pt2pt/osu_latency", 2, "1 MPI_Send 50 tag", "deadlock", "it has sent one with tag 2, and 0 wants tag 1"),
    ("pt2pt/osu_latency", 2, "0 MPI_Recv 70 tag", "deadlock", "it has sent one with tag 1, and 0 wants tag 2"),
    ("pt2pt/osu_latency", 2, "1 MPI_Recv 70 exit", "ended", "rank 1 is gone: exit status 0"),
    ("pt2pt/osu_latency", 2, "1 MPI_Send 70 abort", "ended", "rank 1 is gone: killed by signal 6"),
    ("pt2pt/osu_latency", 2, "1 MPI_Send 70 stop", "late", r"rank 1 .* is sleeping outside of MPI"),
    ("pt2pt/osu_latency", 2, "0 MPI_Barrier 2 skip", "deadlock", "rank 1 is in MPI_Barrier"),
    ("pt2pt/osu_bw", 2, "0 MPI_Isend 200 tag", "deadlock", "rank 0 does not send to 1"),
    ("pt2pt/osu_bw", 2, "1 MPI_Irecv 200 tag", "deadlock", "rank 0 does not send to 1"),
    ("pt2pt/osu_bibw", 2, "1 MPI_Isend 200 stop", "late", r"rank 1 .* is sleeping"),
    ("pt2pt/osu_multi_lat", 4, "3 MPI_Send 50 skip", "deadlock", "rank 3 does not send to 1"),
    ("pt2pt/osu_mbw_mr", 4, "1 MPI_Isend 100 tag", "deadlock", "rank 1 does not send to 3"),
    ("collective/osu_barrier", 4, "2 MPI_Barrier 100 skip", "mismatch", "rank 2: MPI_Reduce"),
    ("collective/osu_barrier", 4, "2 MPI_Barrier 100 stop", "late", r"rank 2 .* is sleeping"),
    ("collective/osu_allreduce", 4, "2 MPI_Allreduce 100 skip", "mismatch", "rank 2: MPI_"),
    ("collective/osu_allreduce", 4, "1 MPI_Allreduce 40 barrier", "mismatch", "rank 1: MPI_Barrier"),
    ("collective/osu_allreduce", 4, "3 MPI_Allreduce 100 exit", "ended", "rank 3 is gone: exit status 0"),
    ("collective/osu_bcast", 4, "0 MPI_Bcast 100 skip", "mismatch", "rank 0: MPI_"),
    ("collective/osu_bcast", 4, "1 MPI_Bcast 60 barrier", "mismatch", "rank 1: (MPI_Barrier|.* MPI_Barrier, .* MPI_Bcast)"),
    ("collective/osu_reduce", 4, "2 MPI_Reduce 100 root", "mismatch", r"rank 2: MPI_Reduce, .* root 1"),
    ("collective/osu_gather", 4, "3 MPI_Gather 100 root", "mismatch", r"rank 3: MPI_Gather, .* root 1"),
    ("collective/osu_scatter", 4, "3 MPI_Scatter 100 root", "mismatch", r"rank 3: MPI_Scatter, .* root 1"),
    ("collective/osu_alltoall", 4, "2 MPI_Alltoall 40 stop", "late", r"rank 2 .* is sleeping"),
    ("collective/osu_ibarrier", 4, "2 MPI_Ibarrier 40 stop", "late", r"rank 2 .* is sleeping"),
    # Right, but late.
    ("pt2pt/osu_latency", 2, "1 MPI_Send 50 compute", "", "rank 1 .* computing, not waiting"),
    ("pt2pt/osu_bw", 2, "1 MPI_Irecv 100 sleep", "", "rank 1 .* is sleeping"),
    ("collective/osu_allreduce", 4, "2 MPI_Allreduce 100 compute", "", "rank 2 .* computing, not waiting"),
    ("collective/osu_bcast", 4, "0 MPI_Bcast 100 sleep", "", "rank 0 .* is sleeping"),
    ("collective/osu_allgather", 4, "3 MPI_Allgather 40 compute", "", "rank 3 .* computing, not waiting"),
]
EXAMPLE = "01_communicators/03_one_device_per_process_mpi_mpi"
BUFFERS, SYMMETRIC, GATHER = "04_user_buffer_registration/01_allreduce_mpi", "05_symmetric_memory/01_allreduce_mpi", "05_symmetric_memory/02_allgather_mpi"
NCCL = [
    (EXAMPLE, 4, "0 MPI_Bcast 1 skip", "deadlock", "rank 0 is not in MPI_Bcast: rank 0 is in ncclCommInitRank"),
    (EXAMPLE, 4, "1 ncclCommInitRank 1 skip", "ended", "rank 1 is gone: exit status 1"),
    (EXAMPLE, 4, "3 ncclCommInitRank 1 barrier", "deadlock", "rank 3 is not in ncclCommInitRank: rank 3 is in MPI_Barrier"),
    (EXAMPLE, 4, "2 ncclCommInitRank 1 stop", "late", "rank 2 .* is sleeping"),
    (EXAMPLE, 4, "2 MPI_Barrier 1 skip", "deadlock", "rank 2 is not in MPI_Barrier"),
    (BUFFERS, 4, "1 ncclAllReduce 1 skip", "deadlock", "rank 1 has made 0 calls"),
    (BUFFERS, 4, "2 ncclAllReduce 1 barrier", "deadlock", "rank 2 has made 0 calls"),
    (BUFFERS, 4, "3 cudaStreamSynchronize 1 stop", "late", "rank 3 .* is sleeping"),
    (SYMMETRIC, 4, "0 ncclAllReduce 1 skip", "deadlock", "rank 0 has made 2 calls"),
    (SYMMETRIC, 4, "1 ncclAllReduce 1 exit", "ended", "rank 1 is gone: exit status 0"),
    (SYMMETRIC, 4, "2 ncclAllReduce 1 count", "mismatch", "rank 2: ncclAllReduce"),
    (GATHER, 4, "3 ncclAllGather 1 stop", "late", "rank 3 .* is sleeping"),
    (GATHER, 4, "1 ncclAllGather 1 abort", "ended", "rank 1 is gone: killed by signal 6"),
    (GATHER, 4, "1 ncclAllGather 1 compute", "", "rank 1 .* computing, not waiting"),
    (BUFFERS, 4, "2 ncclAllReduce 1 sleep", "", "rank 2 .* is sleeping"),
]
OWN = [  # nccl_without_mpi, for launchers without MPI
    ("nccl_without_mpi", 4, "1 ncclCommInitRank 1 stop", "late", "rank 1 .* is sleeping"),
    ("nccl_without_mpi", 4, "2 ncclAllReduce 2 skip", "ended", "rank 2 has made 1 calls"),
    ("nccl_without_mpi", 4, "3 ncclAllReduce 1 count", "mismatch", "rank 3: ncclAllReduce"),
    ("nccl_without_mpi", 4, "0 cudaStreamSynchronize 1 exit", "late", "rank 0 is gone: exit status 0; another may wait"),
    ("nccl_without_mpi", 4, "0 ncclAllReduce 1 sleep", "", "rank 0 .* is sleeping"),
]
TORCHRUN = os.environ.get("MULTINODE_TORCH", os.path.expanduser("~/.cache/multinode/torch")) + "/bin/torchrun"
OPEN_MPI_5 = os.environ.get("MULTINODE_OPEN_MPI_5", os.path.expanduser("~/.cache/multinode/open-mpi-5")) + "/bin"
# Slurm kills all when a rank dies, before who_waits can explain it.
ALIVE, ALIVE_NCCL = ([row for row in rows if row[3] != "ended"][::3] for rows in (OSU, NCCL))
# how, rows, compiler of the mistakes, command before the number of ranks
HOW = {
    "open-mpi": (OSU, "mpicc", ["mpirun", "-n"]),
    "open-mpi-5": (OSU, f"{OPEN_MPI_5}/mpicc", [f"{OPEN_MPI_5}/mpirun", "-n"]),
    "mpich": (OSU, "mpicc.mpich", ["mpirun.mpich", "-n"]),
    "nccl": (NCCL, "mpicc", ["mpirun", "-n"]),
    "mnrun": (OWN, "mpicc", ["BUILD/01-environment/mnrun", "--nproc-per-node"]),
    "torchrun": (OWN, "mpicc", [TORCHRUN, "--no_python", "--nproc_per_node"]),
    "srun": (ALIVE, "mpicc", ["srun", "--mpi=pmix", "-N", "2", "-n"]),
    "srun-mpich": (ALIVE, "mpicc.mpich", ["srun", "--mpi=pmi2", "-N", "2", "-n"]),
    "srun-nccl": (ALIVE_NCCL, "mpicc", ["srun", "--mpi=pmix", "-N", "1", "-n"]),
}


def build_osu(name, to, sources, compiler):
    source = sources / "mpi" / f"{name}.c"
    common = {"pt2pt": "osu_pt2pt", "collective": "osu_coll", "one-sided": "osu_1sc"}[source.parent.name]
    parts = [source.parent / f"{common}.c"] if re.search(rf'["<]{common}\.h', source.read_text()) else []
    subprocess.run([compiler, "-w", "-O1", "-DFIELD_WIDTH=18", "-DFLOAT_PRECISION=2", "-I", sources / "util", "-I", source.parent,
                    source, *parts, "-o", to, "-lm", "-lpthread"], check=True)


def programs_of(rows, options, folder, compiler):
    """The path of each program. Raises FileNotFoundError where its sources are not here."""
    paths = {}
    table = {program.name: program for program in foreign_test.TABLE if program.source in ("nccl-examples", "nccl-tests")}
    for name in {row[0] for row in rows}:
        if name == "nccl_without_mpi":
            paths[name] = options.build / "03-message-passing" / name
            continue
        source = table[name].source if name in table else "osu-micro-benchmarks"
        sources = foreign_test.folder_of(source, options.build)
        if not sources:
            raise FileNotFoundError(f"no sources of {source}")
        if name in table:
            paths[name] = foreign_test.build(table[name], options, sources)
        else:
            paths[name] = folder / pathlib.Path(name).name
            build_osu(name, paths[name], sources, compiler)
    return paths


def explain(row, path, library, launch, options, folder):
    """What is wrong with the explanation, or ""."""
    _, ranks, mistake, cause, says = row
    lines = folder / "lines.json"
    lines.unlink(missing_ok=True)
    program = [path, folder / "id"] if path.name == "nccl_without_mpi" else [path]
    (folder / "id").unlink(missing_ok=True)
    if options.how in ("nccl", "mnrun", "torchrun", "srun-nccl"):
        launch = [options.build / "emulated-gpu/with-gpus", str(ranks), *launch]
    limit = {"late": "40", "": "900"}.get(cause, "200")  # a program that is late by the mistake `stop` never ends
    result = subprocess.run(["timeout", limit, *launch, str(ranks), options.build / "03-message-passing/who_waits", "--after", "2", "--json", lines,
                             "--", "sh", "-c", f'LD_PRELOAD={library}:$LD_PRELOAD exec "$@"', "sh", *program],
                            env={**foreign_test.ENVIRONMENT, "MISTAKE": mistake, "HOME": str(folder)}, stdin=subprocess.DEVNULL, capture_output=True,
                            text=True, check=False)
    found = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    text = "\n".join("\n".join(one["lines"]) for one in found)
    if not found or not re.search(says, text):
        return f"it does not say '{says}': {text or result.stdout + result.stderr}"
    if cause in ("", "late"):  # nothing is proved
        if any(one["certain"] for one in found):
            return f"it accuses: {text}"
        return "" if cause == "late" or result.returncode == 0 else f"exit status {result.returncode}: {result.stderr}"
    if cause not in (one["cause"] for one in found):
        return f"the cause is '{found[-1]['cause']}', not '{cause}': {text}"
    ended = result.returncode > 0 and result.returncode not in (124, 139)  # not by timeout, and the launcher has not crashed
    return "" if ended else f"exit status {result.returncode}: {text}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("how", choices=HOW)
    parser.add_argument("rows", nargs="*", type=int, help="numbers of rows, for a part of them")
    parser.add_argument("--headers", default="")
    parser.add_argument("--libraries", default="")
    options = parser.parse_args()
    options.build = options.build.resolve()
    rows, compiler, launch = HOW[options.how]
    launch = [part.replace("BUILD", str(options.build)) for part in launch]
    rows = [rows[i] for i in options.rows or range(len(rows))]
    if not shutil.which(compiler) or not shutil.which(launch[0]):
        print(f"{compiler} or {launch[0]} is not here")
        return 77
    (options.build / "foreign").mkdir(exist_ok=True)
    wrong = 0
    with tempfile.TemporaryDirectory(dir=options.build) as temporary:  # which the nodes of srun see
        folder = pathlib.Path(temporary)
        try:
            programs = programs_of(rows, options, folder, compiler)
        except FileNotFoundError as why:
            print(why)
            return 77
        library = folder / "mistakes.so"
        nccl = [f"-I{path}" for path in options.headers.split(":") if path] + ["-DWITH_NCCL"] if options.headers else []
        subprocess.run([compiler, "-w", "-shared", "-fPIC", *nccl, HERE / "mistakes.c", "-o", library, "-ldl"], check=True)
        for row in rows:
            problem = explain(row, programs[row[0]], library, launch, options, folder)
            wrong += bool(problem)
            print(f"{'WRONG' if problem else 'right'}  {row[0]}, {row[2]}{': ' + problem if problem else ''}", flush=True)
    print(f"{options.how}: {len(rows) - wrong} of {len(rows)} right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
