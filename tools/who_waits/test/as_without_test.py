"""who_waits changes nothing: where a program's ranks meet, the signals that reach it, how it ends, the tools that it loads.

usage: as_without_test.py BUILD meet,signals,tool,ends [srun]      srun: inside of bash ci/test-cluster/slurm with 2 --

Exit status: 0 all as without who_waits, 1 something is not.
"""
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from programs_test import HERE, MISTAKES, OPEN_MPI_5, foreign_programs

# The test's Slurm has PMIx, for Open MPI.
LAUNCHERS = {"mpicxx": ["srun", "--mpi=pmix", "-N", "2"]} if "srun" in sys.argv else {
    "mpicxx": ["mpirun"], f"{OPEN_MPI_5}/mpicxx": [f"{OPEN_MPI_5}/mpirun"], "mpicxx.mpich": ["mpirun.mpich"]}
ENDS = ["* barrier", "1 end 3", "1 exit 0; * barrier", "1 leave 0; * barrier", "1 leave 7; * barrier", "* leave 0", "1 raise 6; * barrier",
        "1 raise 11; * barrier", "1 raise 9; * barrier", "1 raise 15; * barrier", "1 raise 12; * barrier", "1 mpi_abort 5; * barrier", "1 send 99 7; * barrier"]
SHELL_ENDS = ["true", *(f"[ $RANK = 0 ] && exec sleep 60; {how}" for how in ("exit 3", "exit 126", "kill -ABRT $$", "kill -SEGV $$", "kill -KILL $$",
                                                                            "kill -TERM $$", "kill -USR2 $$", "/no/such/program"))]
# The last one makes who_waits read the program's stack, and a debugger disturbs SIGCONT.
SIGNALS = [int(one) for one in (signal.SIGHUP, signal.SIGUSR2, signal.SIGALRM, signal.SIGXCPU, signal.SIGQUIT, signal.SIGTSTP, signal.SIGRTMIN + 3, signal.SIGCONT, signal.SIGUSR1)]
CATCHES = f"""import os, signal, time
for one in {SIGNALS}: signal.signal(one, lambda number, _: os.write(1, b"%d\\n" % number))  # print() may be at work
print(os.getppid(), os.getpid(), flush=True)
while True: time.sleep(0.01)"""  # signal.pause() would miss one that comes just before it


def outcome(command, folder, env=foreign_programs.ENVIRONMENT, **more):
    result = subprocess.run(["timeout", "200", *command], cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **more)
    return result.returncode, result.stdout, result.stderr


def meet(build, who_waits, _):
    program = build / "03-message-passing/message_passing_gloo"
    if not program.exists():
        print("left out: this build has no message_passing_gloo")
        return
    command = [*who_waits, program]
    users = {"this user": {}, "a user without name and home": {"user": 65533, "group": 65533, "extra_groups": []}}
    readable = all(one.stat().st_mode & 1 for one in program.parents)  # by others
    for user, more in list(users.items())[: 2 if os.geteuid() == 0 and readable else 1]:
        with socket.create_server(("127.0.0.1", 0)) as free:
            variables = {**foreign_programs.ENVIRONMENT, "MASTER_PORT": str(free.getsockname()[1]), "HOME": "/"}
        for launch in ([build / "01-environment/mnrun", "--standalone", "--nproc-per-node", "2"],
                       ["sh", "-c", 'export MASTER_ADDR=127.0.0.1 WORLD_SIZE=2; for i in 1 0; do RANK=$i LOCAL_RANK=$i "$@" & done; wait $!', "sh"]):
            result = outcome([*launch, *command], "/", variables, **more)
            yield f"{user}, {launch[0]}", result[0] == 0 and "RIGHT" in result[1], result


def comes(states, pids):
    def is_so():
        return all((pathlib.Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0] == "T") == states for pid in pids)
    return any(is_so() or time.sleep(0.05) for _ in range(1200))


def signals(_, who_waits, folder):
    pipes = {"cwd": folder, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*who_waits, "/usr/bin/python3", "-c", CATCHES], **pipes) as process:
        pids = [int(one) for one in process.stdout.readline().split()]
        for one in SIGNALS:
            if one == signal.SIGCONT:
                os.kill(pids[1], signal.SIGSTOP)  # it has caught SIGTSTP before: that is no reason to stop with it
                yield "SIGSTOP of the program alone stops it", comes(True, pids[1:]), ""
                os.kill(pids[0], signal.SIGUSR2), os.kill(pids[1], signal.SIGCONT)
                said = {process.stdout.readline() for _ in range(2)}
                yield "and who_waits goes on", said == {f"{signal.SIGUSR2:d}\n", f"{signal.SIGCONT:d}\n"}, said
                os.kill(pids[0], signal.SIGSTOP)
                yield "SIGSTOP stops both", comes(True, pids), ""
            os.kill(pids[0], one)
            said = process.stdout.readline()
            yield f"signal {one} arrives", said == f"{one}\n", said
        yield "and both go on", comes(False, pids), ""
        os.kill(pids[0], signal.SIGTERM)
        yield "SIGTERM ends both", process.wait() == -signal.SIGTERM, process.returncode
    with subprocess.Popen([*who_waits, "sh", "-c", "echo $PPID $$; exec sleep 100"], **pipes) as process:  # which catches none
        pids = [int(one) for one in process.stdout.readline().split()]
        for one, stops, what in ((signal.SIGTSTP, True, "SIGTSTP stops both"), (signal.SIGCONT, False, "and both go on")):
            os.kill(pids[0], one)
            yield what, comes(stops, pids), ""
        os.kill(pids[0], signal.SIGUSR1)
        said = process.stderr.readline()
        yield "SIGUSR1 asks", said == "who_waits: asked by a signal\n", said
        os.kill(pids[0], signal.SIGTERM)
        yield "and does not end it", process.wait() == -signal.SIGTERM, process.returncode


def tool(build, who_waits, folder):
    subprocess.run(["mpicc", *MISTAKES, "-o", folder / "tool.so"], check=True)
    result = outcome(["mpirun", "-n", "2", "env", "MISTAKE=1 MPI_Send 1 tag", f"LD_PRELOAD={folder}/tool.so", who_waits[0], "--after", "1", "--end", "--",
                      build / "tools/who_waits/test/waiting_programs", "1 send 0 8; 0 receive 1 8; * barrier"], folder)
    yield "a tool in LD_PRELOAD", "it has sent one with tag" in result[2], result


def ends(build, who_waits, folder):
    own = re.compile(r"who_waits: |  |\[|$|srun: job \d+ (queued|has been)")  # and the traces of crashes, in which its library is

    def seen(command):
        status, out, err = outcome(command, folder)
        # Open MPI 5 tells of `end` in some runs; srun tells of MPI_Abort, also by an error, what it sees first.
        texts = " end " not in str(command[-1]) and not ("srun" in sys.argv and re.search("mpi_abort|send 99", str(command[-1])))
        lines = {re.sub(r"rank \d+|\d+-\d\d-\d\dT\S+|\d+\.0\b|\d{3,}", "N", line) for line in err.replace("\0", "").splitlines() if texts and not own.match(line)}
        return status, out if status == 0 else "", sorted(lines)  # a launcher may lose what was printed before a failure

    def banner(command):
        status, out, err = outcome(command, folder)
        return status, "BAD TERMINATION" in out + err

    for compiler, launch in LAUNCHERS.items():
        if not shutil.which(compiler):
            continue
        subprocess.run([compiler, "-std=c++20", HERE / "waiting_programs.cpp", "-o", folder / "program"], check=True)
        for how in ENDS:
            program = [folder / "program", how]
            if compiler.endswith("mpich"):  # with which plain runs differ: it kills the other ranks, and its status has their ends or not
                if how == "* leave 0":  # who is a millisecond later than another one is killed
                    continue
                possible = [banner([*launch, "-n", "3", *program]) for _ in range(6)]
                under = banner([*launch, "-n", "3", *who_waits, *program])
                yield f"{launch[0]}, {how}: {sorted(set(possible))}", under in possible, under
                continue
            without, under = (seen([*launch, "-n", "3", *before, *program]) for before in ([], who_waits))
            yield f"{launch[0]}, {how}: {without[0]}", without == under, (without, under)
    mnrun = [build / "01-environment/mnrun", "--standalone", "--nproc-per-node", "2"]
    for how in SHELL_ENDS if mnrun[0].exists() and "srun" not in sys.argv else []:
        without, under = (seen([*mnrun, *before, "sh", "-c", how]) for before in ([], who_waits))
        yield f"mnrun, {how}: {without[0]}", without == under, (without, under)


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    wrong = 0
    for part in sys.argv[2].split(","):
        with tempfile.TemporaryDirectory(dir=build) as folder:  # which the nodes of srun see
            for what, right, found in globals()[part](build, [build / "tools/who_waits/who_waits", "--"], pathlib.Path(folder)):
                wrong += not right
                print(f"{'right' if right else 'WRONG'}  {what}{'' if right else f': {found}'}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
