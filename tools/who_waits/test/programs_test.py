"""who_waits on programs that hang or are slow: waiting_programs, and programs that are not ours, with one mistake put into one
call of one rank: OSU's micro-benchmarks, and NVIDIA's examples of NCCL on emulated GPUs.

usage: programs_test.py BUILD own|own-mpich|mpi4py|open-mpi|open-mpi-5|mpich|nccl|mnrun|torchrun|srun|srun-mpich|srun-nccl [ROW ...]

The sources are taken from the folder in MULTINODE_FOREIGN_SOURCES, or from ../shared/sources beside this repository. Each
mistake must be explained with its cause, rank and call, and a rank that is only late must not be accused. The rows of srun
need Slurm: bash ci/test-cluster/slurm with 2 -- python3 programs_test.py ... Those of mpi4py run with /usr/bin/python3, and
with the Python in MULTINODE_MPI4PY or ~/.cache/multinode/mpi4py, where these have mpi4py.
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
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "common/test/support"))
import foreign_programs  # pylint: disable=wrong-import-position
MISTAKES = [*"-x c++ -std=c++20 -w -O1 -shared -fPIC -fvisibility=hidden -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX".split(), f"-I{HERE.parent}",
            HERE / "mistakes.cpp", "-lstdc++", "-ldl"]

# program, ranks, mistake, cause, what the explanation says
NO_SEND, OTHER_TAG = "rank 1 does not send to 0", "it has sent one with tag 8, and 0 wants tag 7"
OWN = [(program, 4, "", cause, says) for program, cause, says in [
    ("1 send 0 8; 0 receive 1 7; * barrier", "deadlock", OTHER_TAG),
    ("* ssend right 7; * receive left 7", "deadlock", "0 waits for 1, 1 waits for 2, 2 waits for 3, 3 waits for 0: deadlock"),
    ("2 reduce 0; !2 broadcast 0; * barrier", "mismatch", "rank 2: MPI_Reduce, call 4 of MPI_COMM_WORLD, root 0, 4 B"),
    ("2 abort; * barrier", "ended", "rank 2 is gone: killed by signal 6"),
    ("* receive right 7; * send left 7", "deadlock", NO_SEND),
    ("* send right 7 big; * receive left 7 big", "deadlock", "rank 1 does not receive from 0: rank 1 is in MPI_Send to rank 2"),
    ("1 send 2 7; 0 receive 1 7; * barrier", "deadlock", NO_SEND),
    ("* duplicate; 1 send 0 7 1 1; 0 receive 1 7; * barrier", "deadlock", "it has sent one in another communicator"),
    ("2 send 3 7 big; !2 barrier", "deadlock", "rank 3 does not receive from 2: rank 3 is in MPI_Barrier"),
    ("1 all_reduce 0; !1 all_reduce 16; * barrier", "mismatch", "ranks 0, 2-3: MPI_Allreduce, call 4 of MPI_COMM_WORLD, 64 B"),
    ("2 56*all_reduce; !2 57*all_reduce", "deadlock", "first difference: rank 2 has made 59 calls in MPI_COMM_WORLD"),
    ("1 receive 3 7; !1 all_reduce big", "deadlock", "rank 3 does not send to 1: rank 3 is in MPI_Allreduce"),
    ("!1 barrier", "deadlock", "rank 1 is not in MPI_Barrier: rank 1 is in MPI_Finalize"),
    ("2 exit; * barrier", "ended", "rank 2 is gone: exit status 0"),
    ("* 2*duplicate; 0 barrier 2; !0 barrier 1; 0 barrier 1; !0 barrier 2", "deadlock", "rank 0 has made 0 calls in the communicator of ranks 0-3"),
    ("* split; !2 barrier 1; 2 barrier; * barrier", "deadlock", "call 1 of the communicator of ranks 0, 2"),
    ("!0 3*send 0 7; 0 10*receive any 7; * barrier", "deadlock",
     "(?s)0 waits for one of 1-3, .*no rank sends to 0, which has received 3 from each of ranks 1-3: ranks 1-3 are in MPI_Barrier"),
    ("2 send 0 7; 0 receive any 7; 0 send 1 9; 1 receive 0 9; 1 send 0 7; 0 receive 2 7; * barrier", "deadlock",
     "rank 2 does not send to 0, which took 1 of its 1 messages by receives from any rank, and has not received one of rank 1: "),
    ("* ireceive right 5; * wait", "deadlock", "rank 1 is in MPI_Wait for MPI_Irecv from rank 2, tag 5"),
    ("* ireceive left 5; 1 isend right 6; !1 isend right 5; * wait_all; * barrier", "deadlock",
     "rank 1 does not send to 2: .*; it has sent one with tag 6, and 2 wants tag 5"),
    ("3 receive 0 1; !3 ibarrier; !3 wait", "deadlock", "rank 3 is not in MPI_Ibarrier"),
    ("* persistent_ring 10 6", "deadlock", "rank 2 does not send to 3"),
    ("0 probe 3 9; * barrier", "deadlock", "rank 3 does not send to 0"),
    ("!2 exchange; * barrier", "deadlock", "rank 2 does not receive from 1"),
    ("* self; 2 receive 0 7 1 1; * barrier", "deadlock", "rank 2 does not send to 2: rank 2 is in MPI_Recv"),
    ("* 20*barrier_in_a_thread; * receive right 7; * send left 7", "deadlock", NO_SEND),
    ("0 receive 1 7; 1 receive 0 7; 2 receive 3 7; 3 receive 2 7", "deadlock", "(?s)0 waits for 1, 1 waits for 0.*2 waits for 3, 3 waits for 2"),
    ("* sloppy_broadcast; * 10*barrier; 0 receive 1 7; 1 receive 0 7; * barrier", "deadlock", "0 waits for 1, 1 waits for 0"),
    ("* alltoallw 2 0; * barrier", "mismatch", "rank 0 expects 16 B from rank 2, which sends nothing to it"),
    ("* neighbours", "mismatch", "MPI_Neighbor_allgather, .* rank 0 expects 4 B from rank 0, which sends nothing to it"),
    ("!2 group 7; 2 group 8", "deadlock", "rank 2 is not in MPI_Comm_create_group, tag 7: rank 2 is in MPI_Comm_create_group, tag 8"),
    ("* join_halves 1 42 42", "deadlock", "rank 2 is not in MPI_Intercomm_create with remote leader 0, tag 42: .* remote leader rank 1"),
    ("* join_halves 0 42 43", "deadlock", "rank 2 is not in MPI_Intercomm_create with remote leader 0, tag 42: .* tag 43"),
    ("* join_halves 0 42 42; !3 barrier 1", "deadlock", "rank 3 is not in MPI_Barrier, call 1 of .* between ranks 0-1 and ranks 2-3"),
    ("0 many_tags 1 3000; 1 many_tags 0 3000; 0 receive 1 7; 1 receive 0 7; * barrier", "deadlock", "(?s)0 waits for 1.*more pairs of peer and tag"),
    ("* idup; 0 receive 1 7 1 1; 1 receive 0 7 1 1; * barrier", "deadlock", "0 waits for 1, 1 waits for 0"),
    ("0 ireceive 1 5; 0 cancel; 0 receive 1 6; 1 receive 0 6; * barrier", "deadlock", "0 waits for 1, 1 waits for 0"),
    ("0 send 1 5; 1 match_only 0 5; 1 receive 0 5; * barrier", "deadlock", "rank 0 has sent such a message, rank 1 took it with its MPI_Mprobe"),
    ("0 send 1 5; 1 start_receive 0 5; 1 receive 0 5; * barrier", "deadlock", "rank 1 took it with its MPI_Recv_init"),
    ("0 fail_to_send 1 5; 1 receive 0 5; * barrier", "error", "MPI_Bsend to rank 1, tag 5, 4 MiB of rank 0 has returned an error"),
    ("1 send 0 8; 0 iprobe 1 7; * barrier", "polling", f"{NO_SEND}: rank 1 is in MPI_Barrier, .*it has sent one with tag 8"),
    ("0 ireceive 1 7; 1 ireceive 0 7; 0 test 500; 1 test 500; * barrier", "polling", NO_SEND),
    ("0 two_threads; !0 receive 0 7", "threads", "two threads of rank 0 are in collectives of one communicator"),
    ("* reduce_for_ever", "started", "(?s)everything that ranks 0-3 wait for has been started.*reduce_for_ever > MPI_Allreduce"),
    ("* open_file; !3 write_file; * close_file", "mismatch", "rank 3: MPI_File_close, call 1 of the file .*of ranks 0-3"),
    ("* make_window; !2 fence; 2 free_window", "mismatch", "rank 2: MPI_Win_free, call 1 of the window .*of ranks 0-3"),
    ("* 2*make_window; 1 free_window 0; !1 free_window 1; * barrier", "deadlock",
     "(?s)^(?!.*this is so unless).*rank 1 is not in MPI_Win_free, call 1 of the window .*, number 2: rank 1 is in MPI_Win_free, call 1 of the window .*, number 1"),
    ("* make_window; 0 expose 2; 1 access 0; * barrier", "deadlock",
     "(?s)^(?!.*this is so unless).*rank 2 has not called MPI_Win_start for rank 0, but rank 1 did"),
    ("* spawn 60; 0 disconnect; * barrier", "late", r"rank 0 \(.* is in MPI_Comm_disconnect in the communicator with the spawned 'waiting_programs'"),
    ("* make_window; 0 lock 0; * barrier; 1 lock 0; 1 put 0; * barrier", "deadlock", "rank 0 has not unlocked rank 0 in the window .*of ranks 0-3"),
    ("* make_window; 0 lock 1; * barrier; !0 lock_all; * barrier", "deadlock", "rank 0 has not unlocked rank 1 in the window .*: rank 0 is in MPI_Barrier"),
    ("0 ssend 1 5; 1 match_only 0 5; * barrier", "deadlock", "rank 1 has matched it with MPI_Mprobe, but not received it: rank 1 is in MPI_Barrier"),
    ("0 locked_thread 1; 1 receive 0 2", "late", "rank 0 .* outside of MPI and NCCL in pthread_mutex_lock"),
    ("* make_window; 2 poll 1; !2 receive 2 7; * barrier", "polling", "no rank writes what rank 2 reads there: rank"),
    ("* 2*make_window; 2 poll 4; !2 receive 2 7; * barrier", "polling", "no rank writes what rank 2 reads there: rank"),
    ("* duplicate; * heartbeat_thread 1 9999; 0 receive 1 7; 1 receive 0 7; * barrier", "deadlock",
     "(?s)0 waits for 1, 1 waits for 0.*unless another thread of these ranks helps"),
    # Right programs
    ("0 late_thread 1 7 9; 1 late_thread 0 7 9; 0 receive 1 7; 1 receive 0 7; * barrier", "", "another of its threads .* may still make a call"),
    ("0 send_in_finalize 4; 1 receive 0 9", "", "rank 0 .* in MPI_Finalize .* a function of the program may run there"),
    ("* sloppy_broadcast; * spawn 4; 0 receive 0 1 1 1; * barrier; * disconnect", "", "what rank 0 waits for is not recorded: it is in MPI_Recv|rank 0 .* is in MPI_Recv"),
    ("* make_window; 0 expose 1; 1 access 0 4; 0 send 2 7; 2 receive 0 7; * free_window", "", "rank 1 has not called MPI_Win_complete for rank 0: rank 0 waits"),
    ("* sloppy_broadcast; 0 sleep 4; * barrier", "", "rank 0 is not in MPI_Barrier: ranks 1-3 wait for it"),
    ("* mistakes; 1 send 0 7; 0 receive any any; * barrier", "", ""),
    ("* make_window; 2 count_tasks 4; * barrier", "", ""),
    ("* duplicate; * heartbeat_thread 1 60; 1 sleep 6; * barrier; * join_thread", "", "^$|rank 1 is not in MPI_Barrier|another of its threads"),
    ("* sloppy_broadcast; 0 nap 700; * barrier; * nap 300", "", "^$|rank 0 is not in MPI_Barrier"),  # nothing after its end
    ("* group; 1 send 0 7 1 1; 0 receive any any 1 1; * barrier 1; * barrier", "", ""),
]]
# A gdb that fails: nothing is said of what the rank does that is in no recorded call.
OWN += [("1 sleep 4; * barrier", 4, "no gdb", "", r"rank 1 .* in no recorded call, and without its stack"),
        ("* open_file; 0 close_file; * barrier; !0 close_file", 4, "no gdb", "deadlock", "rank 0 is in MPI_File_close, call 1 of the file")]
if shutil.which("mpif90"):
    OWN.append(("fortran.f90", 2, "", "deadlock", "MPI_Win_free, call 1 of the window made at fortran.f90:8 of ranks 0-1 at fortran.f90:9"))
# Right programs, in which a rank L is late: what it does, and how the others wait for it. In every tenth, all are late.
WORK = ["compute 4", "sleep 4", "read_pipe 4", "compute_in_a_thread 4", "be_stopped 4", "400*nap 10", "run_sleep 4"]
MEETINGS = [
    "* barrier", "* all_reduce", "* broadcast L", "* gather L; * barrier", "L send_to_all 0 1; !L receive L 1",
    "L send_to_all 0 1; !L receive any any", "!L send L 1 big; L 3*receive any 1 big", "!L ssend L 1; L 3*receive any 1",
    "L send_to_all 0 1; !L probe L 1; !L receive L 1", "L send_to_all 0 1; !L iprobe any 1; !L receive L 1",
    "L send_to_all 0 1; !L ireceive L 2; !L ireceive L 1; !L wait_any", "* ibarrier; * wait", "* iall_reduce; * test", "* halves", "* exchange",
    "* persistent_ring 10", "!0 receive left 1; !3 send right 1", "", "* make_window; * fence; * free_window",
]
OWN += [(f"* 20*halves; {'*' if i % 10 == 9 else 'L'} {WORK[i % 7]}; {MEETINGS[i % 19]}".replace("L", str(i % 4)), 4, "", "",
         r"rank \d" if i % 10 == 9 else rf"rank {i % 4} \(") for i in range(40)]
OWN_MPICH = [(program, 4, "", cause, says) for program, cause, says in [
    ("0 gather_large 0; !0 gather 0; * all_reduce; 0 sleep 4; * broadcast 0", "", "rank 0 is not in MPI_Bcast"),
    ("* persistent_barriers 1; * barrier", "deadlock", "rank 1 is not in MPI_Barrier_init, call 5 of .*: rank 1 is in MPI_Barrier, call 5 of"),
    ("* session", "deadlock", "0 waits for 1, 1 waits for 0"),
]] + [row for row in OWN if any(word in row[0] for word in ("alltoallw", "neighbours", "group", "join_halves", "_thread", "match_only", "_receive", "finalize"))]
PYTHONS = ["/usr/bin/python3", os.environ.get("MULTINODE_MPI4PY", os.path.expanduser("~/.cache/multinode/mpi4py")) + "/bin/python"]
MPI4PY = [(f"{python} {text}", 2, "", cause, says) for python in filter(os.path.exists, PYTHONS) for text, cause, says in [
    ("w.recv(source=1 - w.rank)", "deadlock", "0 waits for 1, 1 waits for 0"),
    ("w.send(bytes(1 << 24), dest=w.rank); w.recv(source=w.rank)", "deadlock", "0 waits for 0: deadlock"),
    ("w.rank and __import__('time').sleep(4); w.barrier()", "", "rank 1 is not in MPI_Barrier: rank 0 waits for it"),
    ("w.rank and w.bcast(7); w.rank or w.Bcast(bytearray(64)); w.barrier()", "error", "MPI_Bcast, call 1 of .* of rank 1 has returned an error"),
    ("w.rank or 1 / 0; w.barrier()", "deadlock", "rank 0 is not in MPI_Barrier: rank 0 is in MPI_Finalize"),
]]
OSU = [
    ("pt2pt/osu_latency", 2, "1 MPI_Send 50 skip", "deadlock", "rank 1 does not send to 0"),
    ("pt2pt/osu_latency", 2, "1 MPI_Send 50 tag", "deadlock", "it has sent one with tag 2, and 0 wants tag 1"),
    ("pt2pt/osu_latency", 2, "1 MPI_Recv 70 exit", "ended", "rank 1 is gone: exit status 0"),
    ("pt2pt/osu_latency", 2, "1 MPI_Send 70 abort", "ended", "rank 1 is gone: killed by signal 6"),
    ("pt2pt/osu_latency", 2, "1 MPI_Send 70 stop", "late", r"rank 1 .* is sleeping outside of MPI"),
    ("pt2pt/osu_mbw_mr", 4, "1 MPI_Isend 100 tag", "deadlock", "rank 1 does not send to 3"),
    ("collective/osu_allreduce", 4, "2 MPI_Allreduce 100 skip", "mismatch", "rank 2: MPI_"),
    ("collective/osu_allreduce", 4, "1 MPI_Allreduce 40 barrier", "mismatch", "rank 1: MPI_Barrier"),
    ("collective/osu_bcast", 4, "1 MPI_Bcast 60 barrier", "mismatch", "rank 1: (MPI_Barrier|.* MPI_Barrier, .* MPI_Bcast)"),
    ("collective/osu_reduce", 4, "2 MPI_Reduce 100 root", "mismatch", r"rank 2: MPI_Reduce, .* root 1"),
    ("collective/osu_ibarrier", 4, "2 MPI_Ibarrier 40 stop", "late", r"rank 2 .* is sleeping"),
    # Right, but late.
    ("pt2pt/osu_latency", 2, "1 MPI_Send 50 compute", "", "rank 1 .* computing, not waiting"),
    ("collective/osu_allreduce", 4, "2 MPI_Allreduce 100 compute", "", "rank 2 .* computing, not waiting"),
]
EXAMPLE = "01_communicators/03_one_device_per_process_mpi_mpi"
BUFFERS, SYMMETRIC, GATHER = "04_user_buffer_registration/01_allreduce_mpi", "05_symmetric_memory/01_allreduce_mpi", "05_symmetric_memory/02_allgather_mpi"
NCCL = [
    (EXAMPLE, 4, "0 MPI_Bcast 1 skip", "deadlock", "rank 0 is not in MPI_Bcast: rank 0 is in ncclCommInitRank"),
    (EXAMPLE, 4, "1 ncclCommInitRank 1 skip", "ended", "rank 1 is gone: exit status 1"),
    (EXAMPLE, 4, "3 ncclCommInitRank 1 barrier", "deadlock", "rank 3 is not in ncclCommInitRank: rank 3 is in MPI_Barrier"),
    (EXAMPLE, 4, "2 ncclCommInitRank 1 stop", "late", "rank 2 .* is sleeping"),
    (BUFFERS, 4, "1 ncclAllReduce 1 skip", "deadlock", "rank 1 has made 0 calls"),
    (SYMMETRIC, 4, "2 ncclAllReduce 1 count", "mismatch", "rank 2: ncclAllReduce"),
    (GATHER, 4, "3 ncclAllGather 1 stop", "late", "rank 3 .* is sleeping"),
    (GATHER, 4, "1 ncclAllGather 1 abort", "ended", "rank 1 is gone: killed by signal 6"),
    (GATHER, 4, "1 ncclAllGather 1 compute", "", "rank 1 .* computing, not waiting"),
    (BUFFERS, 4, "2 ncclAllReduce 1 sleep", "", "rank 2 .* is sleeping"),
]
WITHOUT_MPI = [  # for launchers without MPI
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
    "own": (OWN, "mpicc", ["mpirun", "--oversubscribe", "-n"]),
    "own-mpich": (OWN_MPICH, "mpicc.mpich", ["mpirun.mpich", "-n"]),
    "mpi4py": (MPI4PY, "mpicc", ["mpirun", "-n"]),
    "open-mpi": (OSU, "mpicc", ["mpirun", "-n"]),
    "open-mpi-5": (OSU, f"{OPEN_MPI_5}/mpicc", [f"{OPEN_MPI_5}/mpirun", "-n"]),
    "mpich": (OSU, "mpicc.mpich", ["mpirun.mpich", "-n"]),
    "nccl": (NCCL, "mpicc", ["mpirun", "-n"]),
    "mnrun": (WITHOUT_MPI, "mpicc", ["BUILD/01-environment/mnrun", "--nproc-per-node"]),
    "torchrun": (WITHOUT_MPI, "mpicc", [TORCHRUN, "--no_python", "--nproc_per_node"]),
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


def command_of(name, options, folder, compiler):
    """The command of a program. Raises FileNotFoundError where its sources are not here."""
    if name == "nccl_without_mpi":
        return [options.build / "03-message-passing" / name, folder / "id"]
    if "python" in name:
        python, text = name.split(" ", 1)
        if subprocess.run([python, "-c", "import mpi4py"], capture_output=True, check=False).returncode:
            raise FileNotFoundError(f"{python} has no mpi4py")
        return [python, "-c", f"from mpi4py import MPI; w = MPI.COMM_WORLD\n{text}"]
    if name.endswith(".f90"):
        subprocess.run(["mpif90", "-g", HERE / name, "-o", folder / "fortran"], check=True)
        return [folder / "fortran"]
    if " " in name and options.how == "own-mpich":
        if not (folder / "own").exists():
            subprocess.run(["mpicxx.mpich", "-std=c++20", "-O1", HERE / "waiting_programs.cpp", "-o", folder / "own"], check=True)
        return [folder / "own", name]
    if " " in name:
        return [options.build / "tools/who_waits/test/waiting_programs", name]
    example = next((program for program in foreign_programs.nccl_examples() if program.name == name), None)
    source = example.source if example else "osu-micro-benchmarks"
    sources = foreign_programs.folder_of(source, options.build)
    if not sources:
        raise FileNotFoundError(f"no sources of {source}")
    if example:
        return [foreign_programs.build(example, options, sources)]
    path = folder / pathlib.Path(name).name
    build_osu(name, path, sources, compiler)
    return [path, "-x", "10", "-i", "100", *(["-m", "64"] if name.startswith("collective") else [])]  # short, but with every planted call


def explain(row, command, library, launch, options, folder):
    """What is wrong with the explanation, or ""."""
    _, ranks, mistake, cause, says = row
    lines, statuses = folder / "lines.json", folder / f"statuses{time.monotonic_ns()}"  # a row that was ended may still write its own
    for file in (lines, folder / "id"):
        file.unlink(missing_ok=True)
    if options.how in ("nccl", "mnrun", "torchrun", "srun-nccl"):
        launch = [options.build / "emulated-gpu/with-gpus", str(ranks), *launch]
    environment = {**foreign_programs.ENVIRONMENT, "MISTAKE": mistake, "HOME": str(folder)}
    if mistake == "no gdb":
        for tool in ("gdb", "eu-stack"):
            (folder / tool).write_text("#!/bin/sh\nexit 1\n")
            (folder / tool).chmod(0o755)
        environment["PATH"], mistake = f"{folder}:{environment.get('PATH', os.environ['PATH'])}", ""
    plant = ["sh", "-c", f'LD_PRELOAD={library}:$LD_PRELOAD exec "$@"', "sh"] if mistake else []
    # The status of each who_waits itself: Open MPI's launcher may crash or hang if ranks are in MPI_Finalize when others die, also
    # without who_waits. A program that is late by the mistake `stop` never ends.
    note = ["sh", "-c", 'trap : TERM; "$@"; status=$?; echo $status >> "$0"; exit $status', statuses] if cause != "late" else []
    # In our programs, half of the time between two turns: a rank may move and wait again without being seen to move.
    after = "2" if not options.how.startswith("own") else "0.5" if cause else "1"
    limit = {"late": "40", "": "900"}.get(cause, "200")

    def explanations():
        found = [json.loads(line) for line in lines.read_text().splitlines(keepends=True) if line.endswith("\n")] if lines.exists() else []
        return found, "\n".join("\n".join(one["groups"] + one["lines"] + one["stacks"]) for one in found)

    with open(folder / "out", "w+", encoding="utf-8") as out, open(folder / "err", "w+", encoding="utf-8") as err, \
            subprocess.Popen(["timeout", "-k", "20", limit, *launch, str(ranks), *note, options.build / "tools/who_waits/who_waits", "--end", "--after",
                              after, "--json", lines, "--", *plant, *command], env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=out,
                             stderr=err) as process:
        hangs = False  # explained, without a proof: it goes on
        while process.poll() is None and not hangs:
            time.sleep(0.2)
            found, text = explanations()
            hangs = cause not in ("", "late") and re.search(says, text) and any(one["cause"] == cause for one in found) and not any(
                one["certain"] or "gone" in str(one["lines"]) for one in found)
        if hangs:
            process.terminate()
        process.wait()
        out.seek(0), err.seek(0)
        result = subprocess.CompletedProcess([], process.returncode, out.read(), err.read())
    found, text = explanations()
    if not re.search(says, text):
        return f"it does not say '{says}': {text or result.stdout + result.stderr}"
    if cause in ("", "late"):  # nothing is proved
        # On a busy machine a later explanation may name no rank, and others beside the late one.
        late = re.match(r"rank (\d+)", says)
        wrong = [one for one in found if one["certain"] or (late and one["ranks"] and int(late[1]) not in one["ranks"])]
        if wrong:
            return f"it accuses: {wrong}"
    elif cause not in (one["cause"] for one in found):
        return f"the cause is '{found[-1]['cause']}', not '{cause}': {text}"
    if list(folder.glob(".who_waits*")):
        return "it leaves a file in the home folder"
    if cause == "late" or hangs:
        return ""
    ended = statuses.read_text().split() if statuses.exists() else []
    if cause == "":
        right = ended == ["0"] * ranks and result.returncode == 0
    else:
        killed = result.returncode < 0 or result.returncode in (124, 137, 139)
        right = result.returncode and (not killed or "in MPI_Finalize" in result.stderr)
        # A rank that fails ends with its program's status.
        if any(one["certain"] for one in found):
            failed = re.findall(r"gone: (exit status|killed by signal) (\d+)", result.stderr)
            right = right and ended and set(ended) <= {"1", *(str(int(number) + 128 * ("signal" in how)) for how, number in failed)}
        else:  # nothing is proved: the launcher ends the others when a rank has failed
            right = right and ended and "0" not in ended
    return "" if right else f"statuses {ended}, {result.returncode} of {launch[0]}: {text}\n{result.stderr}"


def run_rows(how, named, problem_of):
    """Prints of each named row what is wrong with it. The exit status."""
    problems = []
    for name, row in named:
        problems.append(problem_of(name, row))
        print(f"{'WRONG' if problems[-1] else 'right'}  {name}{': ' + problems[-1] if problems[-1] else ''}", flush=True)
    print(f"{how}: {problems.count('')} of {len(problems)} right")
    return 1 if any(problems) else 0


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
    with tempfile.TemporaryDirectory(dir=options.build) as temporary:  # which the nodes of srun see
        folder = pathlib.Path(temporary)
        try:
            commands = {name: command_of(name, options, folder, compiler) for name in {row[0] for row in rows}}
        except FileNotFoundError as why:
            print(why)
            return 77
        library = folder / "mistakes.so"
        nccl = [f"-I{path}" for path in options.headers.split(":")] + ["-DWITH_NCCL"] if options.headers else []
        subprocess.run([compiler, *nccl, *MISTAKES, "-o", library], check=True)
        named = [(f"{row[0]}, {row[2]}", row) for row in rows]
        return run_rows(options.how, named, lambda _, row: explain(row, commands[row[0]], library, launch, options, folder))


if __name__ == "__main__":
    sys.exit(main())
