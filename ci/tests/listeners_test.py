"""Checks the tables of SECURITY.md: starts a job of each kind, as one user, and lists the sockets on which its
processes listen and the files that it has written. Another user then tries all of them.

usage: listeners_test.py --build FOLDER

A row of the table is | job | process | listens on | from, to | ... |. "Listens on" is one of
  loopback              127.0.0.0/8, ::1, or a Unix socket
  every address         0.0.0.0 or ::
  the node's address    another one
  nothing               no process of this job listens
What is seen must have a row, and each row must be seen, but for those whose fourth column begins with "briefly".
A row of the other table is | job | files | mode |, with * for any characters and the mode under a umask of 0. Files that
nobody else can use need none.
Exit status: 0 right, 1 wrong, 77 this machine has no address but loopback, no ss (iproute2), or this is not root.
"""
import argparse
import concurrent.futures
import fnmatch
import os
import pathlib
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time

LIMIT = 150  # seconds in which all listeners of a job must have been seen
ROOT = pathlib.Path(__file__).resolve().parents[2]
RAY = pathlib.Path(os.environ.get("MULTINODE_RAY", pathlib.Path.home() / ".cache/multinode/ray")) / "bin"
# Ranks that wait for a silent one hold the job while its sockets are listed.
MUTE = "--mute 1 --timeout 100"
USERS, STRANGER = 61001, 61000  # the first of the jobs' users
JOBS = {
    "mpirun": f"mpirun -n 2 who_waits --after 1 --json hang.jsonl --timeline hang.svg -- message_passing_mpi {MUTE}",
    "mnrun": "mnrun --standalone --nproc-per-node 2 --tee 3 --log-dir logs --rdzv-id job fashion_mnist --backend gloo "
             "--epochs 1000 --checkpoint checkpoints --checkpoint-every 1 --json result.jsonl",
    "mnrun, several nodes":
        f"mnrun --nnodes 2 --node-rank 1 --master-addr {{address}} --master-port {{port}} message_passing_gloo {MUTE} & "
        f"mnrun --nnodes 2 --node-rank 0 --master-addr {{address}} --master-port {{port}} message_passing_gloo {MUTE}; wait",
    "emulated GPUs": f"with-gpus 2 mnrun --standalone --nproc-per-node 2 message_passing_nccl {MUTE}",
    "cluster": "cluster start --head --port 0 --state cluster",
    "Ray": f"export PATH={RAY}:$PATH RAY_AUTH_MODE=token RAY_AUTH_TOKEN=$(od -An -N 32 -t x1 /dev/urandom | tr -d ' \\n') "
           f"RAY_TMPDIR=$TMPDIR/ray RAY_USAGE_STATS_ENABLED=0; bash {ROOT}/06-ray-style/ray_node.sh 0 {{address}}:{{port}} 1",
    "image-check": "image-check run --launcher mnrun --site ../site.json --only held -o out",
    "image-check node": "image-check node --budget 10",
}
SITE = '{"checks": [{"name": "held", "suite": "none", "where": "once", "command": "sleep 100", "limit": 100}]}'


def kind_of_address(text):
    if text.startswith(("127.", "[::1]", "[::ffff:127.", "/", "@")):
        return "loopback"
    return "every address" if text.startswith(("0.0.0.0", "*", "[::]")) else "the node's address"


def processes_of(job):
    """By pid, the programs of its session and of their descendants. Those that are ending do not count: ps prints only a
    name in brackets for them."""
    parents, names, found = {}, {}, set()
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid=,sess=,args="], capture_output=True, text=True, check=True).stdout
    for line in listed.splitlines():
        pid, parents[pid], session, command = line.split(None, 3)
        names[pid] = os.path.basename(command.split()[0])
        found |= {pid} if session == str(job) else set()
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return {pid: names[pid] for pid in found if pid in names and not names[pid].startswith("[")}


def listeners_of(job):
    """Program and place of every socket on which a process of the job listens, and its address."""
    listed = subprocess.run(["ss", "-Hlntxp"], capture_output=True, text=True, check=True).stdout
    processes = processes_of(job)
    return {(processes[pid], kind_of_address(line.split()[4])): line.split()[4] for line in listed.splitlines()
            for pid in re.findall(r"pid=(\d+)", line) if pid in processes}


def written_by(user, folder):
    """The files and folders that the user has written, and what others may do with them, as a mode."""
    places = [folder / "here", folder / "home", folder / "tmp"]
    if user != os.getuid():  # who has other files there
        places += [path for base in ("/tmp", "/dev/shm", "/var/tmp") for path in pathlib.Path(base).iterdir() if path != folder]
    found = {}
    for path in places:  # which grow meanwhile
        try:
            status = path.lstat()
            if status.st_uid == user and not path.is_symlink():
                can_enter = found.get(path.parent, 0o777) & 1
                found[path] = stat.S_IMODE(status.st_mode) & (0o777 if can_enter else 0o700)
                places.extend(path.iterdir() if path.is_dir() else ())
        except FileNotFoundError:  # it was there for a moment
            pass
    return found


# What another user can write to, what he reads, and what he hears from an address to which he sends nonsense.
TRY = """for what; do
  if [[ $what = /* ]]; then
    [[ ! -w $what ]] || printf '\\ncan write to %s\\n' "$what"
    [[ ! -f $what || ! -r $what ]] || cat "$what"
  else exec 3<>"/dev/tcp/${what%:*}/${what##*:}" && echo GET / >&3; timeout 0.5 cat <&3; fi
done"""


def as_user(user, *command):
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *map(str, command)] if os.geteuid() == 0 else command


def problems_of(job, files, addresses, log):
    """What another user can do, or see: tokens in what a job says, in its command lines and in its files."""
    if os.geteuid() != 0:
        return []
    lives, command_lines = job.poll() is None, [f"/proc/{pid}/cmdline" for pid in processes_of(job.pid)]
    shown = subprocess.run(as_user(STRANGER, "bash", "-c", TRY, "try", log, *command_lines, *files, *addresses), capture_output=True, check=False).stdout
    problems = [line.decode() for line in shown.splitlines() if line.startswith(b"can write")]
    environments = subprocess.run(["cat", "/dev/null", *(f"/proc/{pid}/environ" for pid in processes_of(job.pid))], capture_output=True,
                                  check=False).stdout  # of those that have not ended
    secrets = set(re.findall(rb"STORE=[^\s\0]*?([0-9a-f]{32,})", environments))
    problems += ["a token is shown" for secret in secrets if secret in shown]
    return problems + (["another user has ended the job"] if lives and job.poll() is not None else [])


def rows(text):
    """By kind of job, the set of (process, where) that must be seen, that may be, and of the files with their modes."""
    table = {}
    for line in text.splitlines():
        cells = [cell.strip().strip("`") for cell in line.split("|")[1:-1]]
        if cells and cells[0] in JOBS:
            must, may, files = table.setdefault(cells[0], (set(), set(), set()))
            names = [name.strip().strip("`") for name in cells[1].split(",")]
            if len(cells) == 3:
                files.update((name, int(cells[2], 8)) for name in names)
            elif cells[2] != "nothing":
                (may if cells[3].startswith("briefly") else must).update((name, cells[2]) for name in names)
    return table


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def check(kind, umask, must, may, wanted, address, build):
    user = USERS + 2 * list(JOBS).index(kind) + (umask == 0)
    if os.geteuid() != 0 or kind == "Ray":  # which only its owner can execute
        user = os.getuid()
    with tempfile.TemporaryDirectory() as name:
        folder, log = pathlib.Path(name), pathlib.Path(name, "log")
        folder.chmod(0o755)
        (folder / "site.json").write_text(SITE)
        for part in ("here", "home", "tmp"):
            (folder / part).mkdir()
            os.chown(folder / part, user, -1)
        command = f"umask {umask:o}; source {build}/env.sh; export TMPDIR={folder}/tmp HOME={folder}/home; " + JOBS[kind].format(
            port=free_port(), address=address)
        with open(log, "w") as out:
            job = subprocess.Popen(as_user(user, "bash", "-c", command), cwd=folder / "here", stdout=out, stderr=out,
                                   start_new_session=True)
        seen, missing, addresses, names, files, end = set(), [name for name, _ in wanted], {}, {}, {}, time.monotonic() + LIMIT
        try:
            while time.monotonic() < end and job.poll() is None:
                addresses = listeners_of(job.pid)
                seen |= set(addresses)
                files = written_by(user, folder)
                names = {str(path).replace(f"{folder}/here/", "").replace(f"{folder}/home", "~"): path for path in files}
                missing = [name for name in missing if not fnmatch.filter(names, name)]  # some come and go
                if (seen >= must and not missing) or seen - must - may:
                    end = min(end, time.monotonic() + 3)  # what listens later is seen, too
                time.sleep(0.02)
            without_row = [f"{name} ({files[path]:o})" for name, path in names.items() if path.is_file() and files[path] & 0o77 and
                           not any(fnmatch.fnmatch(name, row) and files[path] == mode & ~umask for row, mode in wanted)]
            problems = problems_of(job, files, [one for one in addresses.values() if re.search(r"^\d.*:\d+$", one)], log)
        finally:
            subprocess.run(["kill", "-KILL", *processes_of(job.pid)], stderr=subprocess.DEVNULL, check=False)
            job.wait()
            for path in written_by(user, folder):
                if path.parent == pathlib.Path("/dev/shm"):  # Open MPI's, of a user who is only here
                    path.unlink()
        if must <= seen <= must | may and not missing + without_row + problems:
            print(f"right  {kind}, umask {umask:o}: {sorted(seen) or 'nothing'}")
            return True
        print(f"WRONG  {kind}, umask {umask:o}: listening without a row: {sorted(seen - must - may)}; rows without a listener: "
              f"{sorted(must - seen)}; not written: {missing}; written without a row: {without_row}; another user: {problems}\n"
              f"{log.read_text()}")
        return False


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--build", required=True)
    options = parser.parse_args()
    table = rows((ROOT / "SECURITY.md").read_text())
    build = pathlib.Path(options.build).resolve()
    if not shutil.which("ss") or subprocess.run(as_user(USERS, "test", "-r", build / "env.sh"), check=False).returncode:
        print("no ss (iproute2), or another user cannot read the build folder")
        sys.exit(77)
    addresses = [a for a in subprocess.run(["hostname", "-I"], capture_output=True, text=True).stdout.split() if "." in a]
    kinds = [kind for kind in JOBS if kind != "Ray" or (RAY / "ray").exists()]
    if "Ray" not in kinds:
        print("left out  Ray: bash ci/setup ray installs it")
    with concurrent.futures.ThreadPoolExecutor(4) as some:
        checks = [some.submit(check, kind, umask, *table[kind], addresses[0] if addresses else "", build)
                  for kind in kinds for umask in ((0o22,) if kind == "Ray" else (0, 0o22)) if addresses or "{address}" not in JOBS[kind]]
    wrong = not all(one.result() for one in checks)
    sys.exit(1 if wrong else 0 if addresses and os.geteuid() == 0 else 77)


if __name__ == "__main__":
    main()
