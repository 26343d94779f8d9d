#!/usr/bin/env python3
"""Data-parallel training by this project and by PyTorch, measured in turn in one run. Two ranks of one thread, each on
a core of its own. Exit status: 0 as fast as wanted, 1 not so, 2 bad command line or a program that failed."""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile

RANKS = 2
WANTED = {32: 2.0, 512: 1.2, 2048: 1.2}  # times PyTorch's rate, by global batch
PYTORCH = {  # the variants of PyTorch's side; the fastest counts
    "fused SGD": {},
    "foreach SGD": {"optimizer": "foreach"},
    "fused SGD, static graph": {"options": {"static_graph": True}},
    "foreach SGD, static graph": {"optimizer": "foreach", "options": {"static_graph": True}},
}


def parse_command_line():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", type=pathlib.Path, help="folder with the built step_benchmark")
    parser.add_argument("--pytorch", type=pathlib.Path, metavar="FOLDER", help="Python environment that has PyTorch "
                        "(default: $MULTINODE_TORCH, or ~/.cache/multinode/torch, where ci/setup puts it)",
                        default=os.environ.get("MULTINODE_TORCH", "~/.cache/multinode/torch"))
    parser.add_argument("--batch-size", type=int, nargs="*", default=sorted(WANTED), metavar="N",
                        help="of both ranks together (default: 32 512 2048)")
    parser.add_argument("--rounds", type=int, default=7, help="in each, everything is measured once (default: 7)")
    parser.add_argument("--seconds", type=float, default=0.3, help="of each measurement (default: 0.3)")
    parser.add_argument("--json", metavar="FILE", help="write every measurement, one a line")
    options = parser.parse_args()
    options.pytorch = options.pytorch.expanduser() / "bin/python"
    for path in (options.programs / "step_benchmark", options.pytorch):
        if not path.exists():
            parser.error(f"no {path}")
    return options


def environments():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE":
                          str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
            for rank in range(RANKS)]


def on_core(rank, command):
    return ["taskset", "-c", str(rank), *map(str, command)]


class PyTorch:
    """PyTorch's ranks: started once, asked many times."""

    def __init__(self, python):
        worker = pathlib.Path(__file__).with_name("pytorch_worker.py")
        self.ranks = [subprocess.Popen(on_core(rank, [python, worker]), env=environment, text=True,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                      for rank, environment in enumerate(environments())]

    def measure(self, **request):
        for rank in self.ranks:
            print(json.dumps(request), file=rank.stdin, flush=True)
        answers = [rank.stdout.readline() for rank in self.ranks]
        if "" in answers:
            sys.exit("compare_with_pytorch: PyTorch's side failed")
        return max(map(json.loads, answers), key=lambda answer: answer["step_ms"])


class Ours:
    """step_benchmark, started for each measurement."""

    def __init__(self, programs, seconds):
        self.program, self.seconds, self.steps = programs / "step_benchmark", seconds, {}

    def run(self, backend, arguments, steps):
        with tempfile.NamedTemporaryFile() as file:
            command = [self.program, "--backend", backend, "--warm-up", 5, "--steps", steps, "--json", file.name]
            ranks = [on_core(rank, command + list(arguments)) for rank in range(RANKS)]
            if backend == "mpi":
                mpirun = ["mpirun"] + ["-n", "1", *ranks[0]]
                for rank in ranks[1:]:
                    mpirun += [":", "-n", "1", *rank]
                # A thread that waits in Open MPI lets the one that computes have their core.
                environment = os.environ | {"OMPI_MCA_mpi_yield_when_idle": "1"}
                started = [subprocess.Popen(mpirun, env=environment, stdout=subprocess.DEVNULL)]
            else:
                started = [subprocess.Popen(rank, env=environment, stdout=subprocess.DEVNULL)
                           for rank, environment in zip(ranks, environments())]
            if any([process.wait() for process in started]):
                sys.exit("compare_with_pytorch: step_benchmark failed")
            fingerprint, answer = map(json.loads, file.read().splitlines())
            return answer | fingerprint

    def measure(self, backend, *arguments):
        key = (backend, arguments)
        if key not in self.steps:
            self.steps[key] = max(3, int(self.seconds * 1e3 / self.run(backend, arguments, 10)["step_ms"]))
        return self.run(backend, arguments, self.steps[key])


def median(measurements, name="step_ms"):
    return statistics.median(measurement[name] for measurement in measurements)


def report(batch, results):
    """Prints the table of one batch size. Returns whether this project was as fast as wanted."""
    variants = [name for name in results if name.startswith("PyTorch DDP")]
    peer = min(variants, key=lambda name: median(results[name]))
    products = results.pop("PyTorch, products")
    times = {name: median(measurements) for name, measurements in results.items()}
    print(f"\nglobal batch {batch}{'ms a step':>43}{'lowest - highest':>21}{'images/s':>10}{'PyTorch DDP = 1':>17}")
    for name, measurements in results.items():
        steps = [measurement["step_ms"] for measurement in measurements]
        print(f"  {name:44}{times[name]:10.3f}{min(steps):11.3f} -{max(steps):8.3f}{batch / times[name] * 1e3:10.0f}"
              f"{times[peer] / times[name]:17.2f}")
    products_ms = {peer: median(products), "ours, gloo": median(results["ours, gloo"], "products_ms")}
    rates = {peer: median(products, "gflops"), "ours, gloo": median(results["ours, gloo"], "products_gflops")}
    for name, ms in products_ms.items():
        print(f"  {name}: matrix products {ms:.3f} ms, {100 * ms / times[name]:.0f} % of the step, at "
              f"{rates[name]:.0f} GFLOP/s a rank; {times[name] - ms:.3f} ms outside them")
    ours = results["ours, gloo"]
    print("  ours, gloo: " + ", ".join(f"{part} {median(ours, part + '_ms'):.3f} ms" for part in
                                       ("forward", "backward", "exposed", "update")))
    for name in ("ours, gloo", "ours, gloo, no overlap", "ours, mpi", "ours, mpi, no overlap", peer):
        alone = times["PyTorch, no communication" if name == peer else "ours, no communication"]
        print(f"  {name}: {alone / times[name]:.3f} of two independent trainings' rate")
    rate = times[peer] / times["ours, gloo"]
    wanted = WANTED.get(batch, 1.0)
    outside = (times["ours, gloo"] - products_ms["ours, gloo"]) / (times[peer] - products_ms[peer])
    excused = products_ms["ours, gloo"] > 0.8 * times["ours, gloo"] and outside <= 0.5
    print(f"  {rate:.2f} times PyTorch's rate, {wanted:g} wanted; {outside:.2f} of its time outside matrix products: "
          f"{'RIGHT' if rate >= wanted or excused else 'WRONG'}")
    return rate >= wanted or excused


def main():
    options = parse_command_line()
    pytorch, ours = PyTorch(options.pytorch), Ours(options.programs, options.seconds)
    log = open(options.json, "w") if options.json else None
    right = True
    for batch in options.batch_size:
        half = {"batch": batch // RANKS, "seconds": options.seconds}
        whole = ("--batch-size", str(batch))
        measurements = {f"PyTorch DDP, {name}": lambda variant=variant: pytorch.measure(
            measure="training", **variant, **half) for name, variant in PYTORCH.items()}
        for name, reduce in (("one all_reduce a gradient", "per-parameter"), ("one all_reduce of all", "flat"),
                             ("no communication", "none")):
            measurements[f"PyTorch, {name}"] = lambda reduce=reduce: pytorch.measure(
                measure="training", reduce=reduce, **half)
        measurements["PyTorch, products"] = lambda: pytorch.measure(measure="products", **half)
        for name, backend, *arguments in (("gloo", "gloo"), ("mpi", "mpi"),
                                          ("gloo, one all_reduce a gradient", "gloo", "--bucket-bytes", "1"),
                                          ("gloo, one all_reduce of all", "gloo", "--bucket-bytes", "1G"),
                                          ("gloo, no overlap", "gloo", "--no-overlap"),
                                          ("mpi, no overlap", "mpi", "--no-overlap"),
                                          ("no communication", "gloo", "--independent")):
            measurements[f"ours, {name}"] = lambda backend=backend, arguments=arguments: ours.measure(
                backend, *whole, *arguments)
        results = {name: [] for name in measurements}
        for round in range(options.rounds):
            for name, measure in measurements.items():
                results[name].append(measure())
                if log:
                    print(json.dumps({"batch": batch, "round": round, "what": name, **results[name][-1]}), file=log)
        right &= report(batch, results)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
