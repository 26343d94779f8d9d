"""who_waits --attach: programs that hang, started without it, are explained from outside; nothing ends and nothing is slowed.

usage: attach_test.py BUILD here|hosts|slurm|open-mpi-msgq|mpich-msgq [ROW ...]

The last two are MPIs in ~/.cache/multinode that show their queues (bash mpi_with_queues open-mpi|mpich ARCHIVE builds them).

hosts and slurm need test hosts (bash ci/test-cluster/hosts with 2 --here -- python3 ...) or Slurm (bash ci/test-cluster/slurm with 2 --).
Exit status: 0 every row right, 1 a row wrong, 77 no eu-stack, or no such MPI.
"""
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

from programs_test import foreign_programs, run_rows

HOSTS = pathlib.Path(__file__).resolve().parents[3] / "ci/test-cluster/hosts"
ALL, OTHERS = "ranks 0-3", r"ranks 0(-1)?, (2-)?3"
ROWS = [  # program of 4 ranks, what is said
    ("1 send 0 8; 0 receive 1 7; * barrier", "rank 0 in MPI_Recv, waiting_programs.cpp:", "ranks 1-3 in MPI_Barrier, waiting_programs.cpp:"),
    ("* ssend right 7; * receive left 7", f"{ALL} in MPI_Ssend, "),
    ("2 send 3 7 big; !2 barrier", "rank 2 in MPI_Send, ", "ranks 0-1, 3 in MPI_Barrier"),
    ("!1 barrier", "rank 1 in MPI_Finalize, waiting_programs.cpp:", "ranks 0, 2-3 in MPI_Barrier"),
    ("* ireceive right 5; * wait", f"{ALL} in MPI_Wait, "),
    ("!2 exchange; * barrier", r"ranks? (0, )?2 in MPI_(Barrier|Finalize), ", r"rank.* in MPI_Sendrecv, "),
    ("* split; !2 barrier 1; 2 barrier; * barrier", "in MPI_Barrier, "),
    ("0 iprobe 3 9; * barrier", r"rank 0 in .*waiting_programs.cpp:", "ranks 1-3 in MPI_Barrier"),
    ("1 compute 600; * all_reduce", r"rank 1 in .*, waiting_programs.cpp:\d+", "rank 1: compute waiting_programs.cpp", f"{OTHERS} in MPI_Allreduce, "),
    ("3 compute_in_a_thread 600; * barrier", r"rank 3 in .*, waiting_programs.cpp:\d+, in another thread", "rank 3: .*compute waiting", "ranks 0-2 in MPI_Barrier"),
    ("2 sleep 600; !2 barrier", r"rank 2 in .*(sleep|nanosleep)", "ranks 0-1, 3 in MPI_Barrier"),
    ("2 read_pipe 600; * barrier", r"rank 2 in .*read", "ranks 0-1, 3 in MPI_Barrier"),
    ("!1 barrier; 1 deeper 600; * barrier", r"rank 1 still moved: other stacks or messages 2 s later"),
]
QUEUE_ROWS = [  # with an MPI that shows its queues; MPICH shows messages that came, Open MPI the members of a communicator
    ("0 receive 1 7; 1 receive 0 7; * barrier", r"rank 0 in MPI_Recv from rank 1, tag 7 at waiting_programs.cpp:\d+",
     "0 waits for 1, 1 waits for 0: deadlock"),
    ("1 send 0 8; 0 receive 1 7; * barrier", "rank 0 in MPI_Recv from rank 1, tag 7 ", "rank 1 does not send to 0.*: rank 0 waits for it",
     ("mpich-msgq", "it has sent one with tag 8, and 0 wants tag 7", "rank 0 has a message with tag 8 from rank 1 of MPI_COMM_WORLD")),
    ("2 send 3 7 big; !2 barrier", "rank 2 in MPI_Send to rank 3, tag 7 ", "rank 3 does not receive from 2: rank 2 waits for it"),
    ("0 isend 1 3 big; 0 isend 1 4 big; 0 wait_all; * barrier", r"rank 0 in MPI_Waitall for MPI_Isend to rank 1, tag [34] and 1 more"),
    ("* duplicate; * name; 2 ssend 3 6 1 1; 3 receive 2 5 1 1; * barrier",
     "rank 3 in MPI_Recv from rank 2, tag 5 in the communicator 'of the test' of ranks 0-3", "it has sent one with tag 6, and 3 wants tag 5"),
    ("* split; 0 receive 1 7 1 1; * barrier", ("open-mpi-msgq", "rank 0 in MPI_Recv from rank 2, tag 7 in the communicator '.*' of ranks 0, 2"),
     ("mpich-msgq", "rank 0 in MPI_Recv from an unknown rank, tag 7")),
]
STEPS = """import sys, time
def step():
    for _ in range(2000): pass
while True:
    began = time.monotonic(); step(); time.sleep(0.001); print(time.monotonic(), time.monotonic() - began, flush=True)
"""


class StandInForNccl(threading.Thread):
    """A stand-in for NCCL's RAS: it answers one request, and closes the connection."""

    def __init__(self):
        super().__init__(daemon=True)
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = "127.0.0.1:%d" % self.server.getsockname()[1]
        self.start()

    def run(self):
        with self.server, self.server.accept()[0] as client, client.makefile("rw") as stream:
            if stream.readline() == "verbose status\n":
                stream.write("Job summary\n1 process missing\n")


def attach(launch, build, what):
    return subprocess.run([*launch, build / "tools/who_waits/who_waits", "--attach", what], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=300, check=False, env=foreign_programs.ENVIRONMENT)


def mpi_of(how):
    return os.path.expanduser(f"~/.cache/multinode/{how}/bin/") if how.endswith("-msgq") else ""


def stopped(result):
    found = re.search(r"stopped for at most ([\d.]+) s", result.stdout)
    return float(found[1]) if found else 9


def explain(program, says, how, build, folder):
    """What is wrong with the explanation, or ""."""
    on = ["bash", HOSTS, "run", "node0"] if how == "hosts" else []
    start = {"hosts": [*on, "mpirun", "-H", "node0:2,node1:2", "-mca", "btl", "tcp,self"],
             "slurm": ["srun", "--mpi=pmix", "-N", "2", "-n", "4"]}.get(how, [mpi_of(how) + "mpirun", "-n", "4"])
    start[len(on):len(on)] = ["sh", "-c", 'echo $$; exec "$@"', "sh"]
    with subprocess.Popen([*start, folder / "waiting_programs", program], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          text=True, env={**foreign_programs.ENVIRONMENT, "HOME": str(folder)}) as job:
        pid, end = job.stdout.readline().strip(), [*on, "kill"]  # of the launcher
        try:
            job.stdout.readline()  # the sums are right
            what, launch = pid, []
            if how == "hosts":
                what, launch = "waiting_programs", [*on, "mpirun", "-H", "node0,node1", "-N", "1", "-x", f"HOME={folder}"]
            elif how == "slurm":
                number = subprocess.run(["squeue", "-h", "-o", "%i"], capture_output=True, text=True, check=True).stdout.split()[0]
                what, launch = f"job:{number}", ["srun", "--overlap", f"--jobid={number}", "-N", "2", "-n", "2"]
            for _ in range(20):  # until it hangs
                result = attach(launch, build, what)
                if all(re.search(one, result.stdout) for one in says):
                    break
            else:
                return f"it does not say {says}: {result.stdout}{result.stderr}"
            if stopped(result) > 1:
                return f"a process was stopped for longer than a second: {result.stdout}"
            time.sleep(0.2)
            return "" if job.poll() is None else "the program has ended"
        finally:
            subprocess.run([*end, pid], check=False)  # the launcher ends its ranks, on all hosts
            try:
                job.wait(60)
            except subprocess.TimeoutExpired:  # mpirun may hang where ranks die in MPI_Finalize, see Watch::say()
                job.kill()


def steps(build, folder):
    """A Python program as a rank: its line is named if py-spy is here, and no step takes a second longer. What is wrong, or ""."""
    script = folder / "steps.py"
    script.write_text(STEPS)
    nccl = StandInForNccl()
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True,
                          env={**os.environ, "RANK": "3", "LOCAL_RANK": "3", "WORLD_SIZE": "4", "NCCL_RAS_ADDR": nccl.address}) as job:
        try:
            before = [float(job.stdout.readline().split()[1]) for _ in range(200)]
            result = attach([], build, "steps.py")
            end = time.monotonic()
            during = []
            while not during or during[-1][0] < end:
                during.append(tuple(map(float, job.stdout.readline().split())))
            after = [float(job.stdout.readline().split()[1]) for _ in range(200)]
        finally:
            job.kill()
    print(f"longest step before {max(before):.3f} s, during {max(one for _, one in during):.3f} s, after {max(after):.3f} s")
    wanted = r"rank 3: steps.py:\d in (step|<module>)" if shutil.which("py-spy") else "rank 3: for Python's lines, install py-spy"
    if not re.search(wanted, result.stdout):
        return f"it does not say {wanted}: {result.stdout}{result.stderr}"
    if f"NCCL's RAS at {nccl.address} says:\n  Job summary\n  1 process missing\n" not in result.stdout:
        return f"it does not show what NCCL says: {result.stdout}{result.stderr}"
    return "" if stopped(result) <= 1 else "it was stopped for longer than a second"


def main():
    build, how = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
    if not shutil.which("eu-stack"):  # gdb can take longer than the second for which a process may be stopped
        print("eu-stack (elfutils) is not here")
        return 77
    if not shutil.which(mpi_of(how) + "mpirun"):
        print(f"{mpi_of(how)}mpirun is not here: see mpi_with_queues")
        return 77
    rows = []  # what is said, also of this MPI alone
    for name, *says in QUEUE_ROWS if mpi_of(how) else ROWS:
        rows.append((name, [*(one for one in says if isinstance(one, str)), *(text for one in says if one[0] == how for text in one[1:])]))
    rows = [rows[int(i)] for i in sys.argv[3:]] or rows
    with tempfile.TemporaryDirectory(dir=build) as temporary:
        folder = pathlib.Path(temporary)
        source = pathlib.Path(__file__).resolve().with_name("waiting_programs.cpp")
        subprocess.run([mpi_of(how) + "mpicxx", "-std=c++20", "-g", source, "-o", folder / "waiting_programs"], check=True)
        return run_rows(how, [("a Python program", []), *rows], lambda name, says: explain(name, says, how, build, folder) if says else steps(build, folder))


if __name__ == "__main__":
    sys.exit(main())
