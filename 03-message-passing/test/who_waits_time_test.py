"""Blind trials of who_waits --time on test hosts: a late rank, a slow link, both or neither, chosen by a random generator.

usage: who_waits_time_test.py BUILD WHO_WAITS WAITING_PROGRAMS [TRIALS [SEED]]

Needs test hosts: ci/test-cluster/hosts with 2 --here -- python3 who_waits_time_test.py ... A trial is right if who_waits
names the cause, and the rank if one is late, and no other. Exit status: 0 if 14 of 15 trials are right, else 1.
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import time

HOSTS = pathlib.Path(__file__).resolve().parents[2] / "ci/test-cluster/hosts"


def hosts(*arguments):
    return subprocess.run(["bash", HOSTS, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)


def trial(rng, who_waits, program, folder):
    is_late, is_slow = rng.random() < 0.5, rng.random() < 0.5
    rank, host = rng.randrange(4) if is_late else -1, f"node{rng.randrange(2)}"
    sleeps, delay, count = rng.randrange(100, 250), rng.randrange(40, 100), rng.choice([2, 256, 4096])
    lines = folder / "lines.json"
    lines.unlink(missing_ok=True)
    if is_slow and (result := hosts("slow", host, "--delay", f"{delay}ms")).returncode:
        sys.exit(f"hosts slow: {result.stderr}")
    result = hosts("run", "node0", "mpirun", "-H", "node0:2,node1:2", "-x", f"HOME={folder}", "-mca", "btl", "tcp,self", who_waits, "--time",
                   "--json", lines, "--", program, "sums", rank, sleeps, count)
    if is_slow:
        hosts("slow", host, "--off")
    truth = " and ".join(["late"] * is_late + ["network"] * is_slow) or "neither"
    said = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    said = next((one for one in said if one.get("what") == "time"), {"cause": "", "ranks": [], "lines": [result.stderr]})
    right = (said["cause"], said["ranks"]) == (truth, [rank] if is_late else [])
    print(f"{'right' if right else 'WRONG'}   {truth}: rank {rank} by {sleeps} ms, {host} by {delay * is_slow} ms, {count} numbers",
          said["lines"][-1] if right else "\n      ".join(said["lines"]), flush=True)
    return right


def main():
    build, who_waits, program = (pathlib.Path(name).resolve() for name in sys.argv[1:4])
    trials = int(sys.argv[4]) if len(sys.argv) > 4 else 30
    seed = int(sys.argv[5]) if len(sys.argv) > 5 else time.time_ns()
    print(f"seed {seed}")
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory(dir=build) as folder:
        right = sum(trial(rng, who_waits, program, pathlib.Path(folder)) for _ in range(trials))
    print(f"{right} of {trials} right")
    return 0 if 15 * right >= 14 * trials else 1


if __name__ == "__main__":
    sys.exit(main())
