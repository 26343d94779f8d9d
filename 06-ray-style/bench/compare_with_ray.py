#!/usr/bin/env python3
"""compare_with_ray.py BUILD [--ray PYTHON] [--turns N] [--seconds S] [--json FILE]

Empty tasks a second from one client, by this chapter's tasks and by Ray's, in one run, turn by turn: synchronous (each
awaited before the next is submitted) and asynchronous (10,000 in flight, each result awaited on its own), with 1 and 2
workers. BUILD is the folder that holds cluster and task_rate (cmake --build build/release --target task_rate); PYTHON has
Ray (pip install ray). Exit status: 0 at least 5 times Ray's rates in the median, every result right, memory within
bounds; 1 not; 2 bad command line.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile

WANTED = 5  # times Ray's rate
IN_FLIGHT = 10_000
MOST_BYTES = {"growth of the client": 64 << 20, "a runner": 64 << 20, "the head": 64 << 20}

# Runs in Ray's Python; argv: number of workers, seconds.
RAY = f"""
import json, sys, time
import ray
workers, seconds = int(sys.argv[1]), float(sys.argv[2])
ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR")

@ray.remote
def empty():
    pass

def one():
    ray.get(empty.remote())
    return 1

def each():
    for ref in [empty.remote() for _ in range({IN_FLIGHT})]:
        ray.get(ref)
    return {IN_FLIGHT}

def together():  # one call for all results: Ray's faster way
    ray.get([empty.remote() for _ in range({IN_FLIGHT})])
    return {IN_FLIGHT}

def rate(seconds, work):
    tasks, start = 0, time.perf_counter()
    while (taken := time.perf_counter() - start) < seconds:
        tasks += work()
    return tasks / (time.perf_counter() - start)

together()  # starts the workers, and warms up
result = {{"ray": ray.__version__}}
for name, work in (("synchronous", one), ("asynchronous", each), ("asynchronous_together", together)):
    result[name] = rate(seconds, work)
print(json.dumps(result))
"""


def run(command, **settings):
    """Returns the last line of the command's output, a JSON object."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=False, **settings)
    if done.returncode != 0:
        sys.exit(f"{command[0]} ended with status {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def measure_ray(python, workers, seconds):
    return run([python, "-c", RAY, str(workers), str(seconds)], env=os.environ | {"RAY_USAGE_STATS_ENABLED": "0"})


def peak_of(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    sys.exit(f"/proc/{pid}/status tells no peak of memory")


def measure_ours(build, workers, seconds):
    with tempfile.TemporaryDirectory() as state:
        os.chmod(state, 0o700)
        subprocess.run([build / "cluster", "start", "--head", "--port", "0", "--num-cpus", str(workers), "--state", state],
                       stdout=subprocess.DEVNULL, timeout=60, check=True)
        try:
            result = run([build / "task_rate", "--state", state, "--num-workers", str(workers), "--seconds", str(seconds),
                          "--in-flight", str(IN_FLIGHT)])
            (pid_file,) = pathlib.Path(state).glob("*-head.pid")
            result["head_peak_bytes"] = peak_of(pid_file.read_text().split()[0])
            return result
        finally:
            subprocess.run([build / "cluster", "stop", "--state", state], stdout=subprocess.DEVNULL, timeout=60, check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--ray", default=pathlib.Path.home() / ".cache/multinode/ray/bin/python", type=pathlib.Path)
    parser.add_argument("--turns", default=3, type=int)
    parser.add_argument("--seconds", default=3.0, type=float, help="of each rate in each turn")
    parser.add_argument("--json", type=pathlib.Path, help="file to write all figures to")
    options = parser.parse_args()
    for program in (options.build / "cluster", options.build / "task_rate", options.ray):
        if not program.exists():
            parser.error(f"there is no {program}")
    if options.turns < 1 or not 0 < options.seconds < 100:
        parser.error("--turns must be at least 1, --seconds above 0 and below 100")

    right = True
    turns = []
    print("workers  tasks a second          Ray       ours  ratio")
    for workers in (1, 2):
        rays, ours = [], []
        for _ in range(options.turns):
            rays.append(measure_ray(options.ray, workers, options.seconds))
            ours.append(measure_ours(options.build.resolve(), workers, options.seconds))
        turns.append({"num_workers": workers, "ray": rays, "ours": ours})
        for way in ("synchronous", "asynchronous"):
            # Asynchronously, Ray may take its results in whichever way is the faster.
            ray = max(statistics.median(turn[key] for turn in rays) for key in rays[0] if key.startswith(way))
            own = statistics.median(turn[way] for turn in ours)
            right = right and own >= WANTED * ray
            print(f"{workers:7}  {way:14}  {ray:11.0f}  {own:9.0f}  {own / ray:5.1f}"
                  f"{'' if own >= WANTED * ray else f'  BELOW {WANTED}'}", flush=True)
    every = [turn for part in turns for turn in part["ours"]]
    peaks = {"growth of the client": max(t["client_peak_bytes"] - t["client_peak_bytes_before"] for t in every),
             "a runner": max(t["runner_peak_bytes"] for t in every),
             "the head": max(t["head_peak_bytes"] for t in every)}
    for name, peak in peaks.items():
        right = right and peak <= MOST_BYTES[name]
        print(f"{every[0]['queued']} tasks queued, memory, {name}: {peak / 2**20:.0f} MiB, "
              f"at most {MOST_BYTES[name] >> 20}: {'right' if peak <= MOST_BYTES[name] else 'WRONG'}")
    right = right and all(turn["right"] for turn in every)
    if options.json:
        cpu = next((line.split(":")[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                    if line.startswith("model name")), platform.machine())
        options.json.write_text(json.dumps(
            {"command": ["compare_with_ray.py", "BUILD", "--turns", options.turns, "--seconds", options.seconds],
             "date": datetime.date.today().isoformat(),
             "machine": {"cpu": cpu, "cores": len(os.sched_getaffinity(0)),
                         "os": platform.freedesktop_os_release()["PRETTY_NAME"]},
             "turns": turns, "right": right}, indent=1) + "\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
