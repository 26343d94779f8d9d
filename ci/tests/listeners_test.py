"""Checks the table of listeners in SECURITY.md: starts a job of each kind and lists the sockets on which its processes
listen.

usage: listeners_test.py --build FOLDER

A row of the table is | job | process | listens on | from, to | ... |. "Listens on" is one of
  loopback              127.0.0.0/8, ::1, or a Unix socket
  every address         0.0.0.0 or ::
  the node's address    another one
  nothing               no process of this job listens
What is seen must have a row, and each row must be seen, but for those whose fourth column begins with "briefly".
Exit status: 0 right, 1 wrong, 77 this machine has no address but loopback, or no ss (iproute2).
"""
import argparse
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

LIMIT = 150  # seconds in which all listeners of a job must have been seen
ROOT = pathlib.Path(__file__).resolve().parents[2]
RAY = pathlib.Path(os.environ.get("MULTINODE_RAY", pathlib.Path.home() / ".cache/multinode/ray")) / "bin"
# Ranks that wait for a silent one hold the job while its sockets are listed.
MUTE = "--mute 1 --timeout 100"
JOBS = {
    "mpirun": f"mpirun -n 2 message_passing_mpi {MUTE}",
    "mnrun": f"mnrun --standalone --nproc-per-node 2 message_passing_gloo {MUTE}",
    "mnrun, several nodes":
        f"mnrun --nnodes 2 --node-rank 1 --master-addr {{address}} --master-port {{port}} message_passing_gloo {MUTE} & "
        f"mnrun --nnodes 2 --node-rank 0 --master-addr {{address}} --master-port {{port}} message_passing_gloo {MUTE}; wait",
    "emulated GPUs": f"with-gpus 2 mnrun --standalone --nproc-per-node 2 message_passing_nccl {MUTE}",
    "cluster": "cluster start --head --port 0",
    "Ray": f"export PATH={RAY}:$PATH RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(od -An -N 32 -t x1 /dev/urandom | tr -d ' \\n') "
           f"RAY_TMPDIR=$TMPDIR/ray RAY_USAGE_STATS_ENABLED=0; bash {ROOT}/06-ray-style/ray_node.sh 0 {{address}}:{{port}} 1",
    "image-check": "image-check run --launcher mnrun --site site.json --only held -o out",
    "image-check node": "image-check node --budget 10",
}
SITE = '{"checks": [{"name": "held", "suite": "none", "where": "once", "command": "sleep 100", "limit": 100}]}'


def kind_of_address(text):
    if text.startswith(("127.", "[::1]", "[::ffff:127.", "/", "@")):
        return "loopback"
    return "every address" if text.startswith(("0.0.0.0", "*", "[::]")) else "the node's address"


def processes_of(job):
    """By pid, the programs of its session and of their descendants."""
    parents, names, found = {}, {}, set()
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid=,sess=,args="], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        pid, parents[pid], session, command = line.split(None, 3)
        names[pid] = os.path.basename(command.split()[0])
        found |= {pid} if session == str(job) else set()
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: names[pid] for pid in found if pid in names}


def listeners_of(job):
    """Program and place of every socket on which a process of the job listens."""
    listed = subprocess.run(["ss", "-Hlntxp"], capture_output=True, text=True, check=True).stdout
    processes = processes_of(job)
    return {(processes[pid], kind_of_address(line.split()[4])) for line in listed.splitlines()
            for pid in re.findall(r"pid=(\d+)", line) if pid in processes}


def rows(text):
    """By kind of job, the set of (process, where) that must be seen, and that may be."""
    table = {}
    for line in text.splitlines():
        cells = [cell.strip().strip("`") for cell in line.split("|")[1:-1]]
        if len(cells) >= 4 and cells[0] in JOBS:
            must, may = table.setdefault(cells[0], (set(), set()))
            if cells[2] != "nothing":
                of_row = {(name.strip().strip("`"), cells[2]) for name in cells[1].split(",")}
                (may if cells[3].startswith("briefly") else must).update(of_row)
    return table


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def check(kind, must, may, address, build):
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "site.json").write_text(SITE)
        log = pathlib.Path(folder) / "log"
        command = f"source {build}/env.sh; export TMPDIR={folder}; " + JOBS[kind].format(
            port=free_port(), address=address)
        with open(log, "w") as out:
            job = subprocess.Popen(["bash", "-c", command], cwd=folder, stdout=out, stderr=out, start_new_session=True)
        seen, end = set(), time.monotonic() + LIMIT
        try:
            while time.monotonic() < end and job.poll() is None:
                seen |= listeners_of(job.pid)
                if seen >= must or seen - must - may:
                    end = min(end, time.monotonic() + 3)  # what listens later is seen, too
                time.sleep(0.02)
        finally:
            subprocess.run(["kill", "-KILL", *processes_of(job.pid)], stderr=subprocess.DEVNULL, check=False)
            job.wait()
        if must <= seen <= must | may:
            print(f"right  {kind}: {sorted(seen) or 'nothing'}")
            return True
        print(f"WRONG  {kind}: listening without a row: {sorted(seen - must - may)}; rows without a listener: "
              f"{sorted(must - seen)}\n{log.read_text()}")
        return False


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--build", required=True)
    options = parser.parse_args()
    table = rows((ROOT / "SECURITY.md").read_text())
    build = pathlib.Path(options.build).resolve()
    if not shutil.which("ss"):
        sys.exit(77)
    addresses = [a for a in subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split() if "." in a]
    wrong = False
    for kind in JOBS:
        if kind not in table:
            print(f"WRONG  SECURITY.md has no row for {kind}")
            wrong = True
        elif kind == "Ray" and not (RAY / "ray").exists():
            print("left out  Ray: bash ci/setup ray installs it")
        elif addresses or "{address}" not in JOBS[kind]:
            wrong |= not check(kind, *table[kind], addresses[0] if addresses else "", build)
    sys.exit(1 if wrong else 0 if addresses else 77)


if __name__ == "__main__":
    main()
