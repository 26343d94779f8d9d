#!/usr/bin/env python3
"""Empty tasks and actor calls per second of Ray's C++ API and of its Python API, one client, on a cluster of this host.

usage: ray_rates.py BUILD [--turns N]     with the Python of Ray's environment, in which `ray` is on the PATH

BUILD has 06-ray-style/on_ray/ray_rates (bash ci/setup ray; ninja ray_rates). Synchronous: each result is awaited before the
next call; asynchronous: 1,000 calls, then their results. Prints medians. Exit status: 0 done, 1 a result was wrong.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import time

import ray


@ray.remote
def empty():
    return 1


@ray.remote
class Empty:
    def call(self):
        return 1


def rate(at_once, function):
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < 2:
        results = [function.remote() for _ in range(at_once)]
        assert ray.get(results) == [1] * at_once
        calls += at_once
    return calls / (time.perf_counter() - start)


def python():
    actor = Empty.remote()
    ray.get([actor.call.remote(), empty.remote()])  # both processes run now
    rates = {"tasks": [rate(1, empty), rate(1000, empty)], "actor calls": [rate(1, actor.call), rate(1000, actor.call)]}
    ray.kill(actor)
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    program = options.build.resolve() / "06-ray-style/on_ray/ray_rates"
    context = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    environment = os.environ | {"RAY_ADDRESS": context.address_info["gcs_address"]}
    turns = []
    for _ in range(options.turns):
        done = subprocess.run([program], env=environment, stdout=subprocess.PIPE, text=True, timeout=120, check=True)
        turns.append((json.loads(done.stdout.splitlines()[-1]), python()))
    print(f"Ray {ray.__version__}, median of {options.turns}, per second   ray-cpp   Python")
    for kind in "tasks", "actor calls":
        for i, way in enumerate(("synchronous", "asynchronous")):
            rates = [statistics.median(turn[api][kind][i] for turn in turns) for api in (0, 1)]
            print(f"{kind:12} {way:12} {rates[0]:24.0f} {rates[1]:8.0f}")


main()
