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
from functools import partial

RANKS = 2
WANTED = {32: 1.8, 512: 1.3, 2048: 1.3}  # times PyTorch's rate, by global batch
PERCEPTRON = {  # the variants of PyTorch's side, all with gradient_as_bucket_view; the fastest counts
    "fused SGD": {},
    "foreach SGD": {"optimizer": "foreach"},
    "fused SGD, static graph": {"options": {"static_graph": True}},
    "foreach SGD, static graph": {"optimizer": "foreach", "options": {"static_graph": True}},
}
RESNET = {"channels first": {}, "channels last": {"channels_last": True}}
RESNET_BATCH = 8  # of each rank


def parse_command_line():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("programs", type=pathlib.Path, help="folder with step_benchmark and, if built, "
                        "synthetic_benchmark")
    parser.add_argument("--pytorch", type=pathlib.Path, metavar="FOLDER", help="Python environment that has PyTorch "
                        "(default: $MULTINODE_TORCH, or ~/.cache/multinode/torch, where ci/setup puts it)",
                        default=os.environ.get("MULTINODE_TORCH", "~/.cache/multinode/torch"))
    parser.add_argument("--batch-size", type=int, nargs="*", default=sorted(WANTED), metavar="N",
                        help="of both ranks together (default: 32 512 2048)")
    parser.add_argument("--rounds", type=int, default=5, help="in each, everything is measured once (default: 5)")
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


def run(program, backend, *arguments):
    """This project's ranks: started for each measurement. Returns what rank 0 wrote as JSON."""
    with tempfile.NamedTemporaryFile() as file:
        command = [program, "--backend", backend, "--json", file.name, *arguments]
        ranks = [on_core(rank, command) for rank in range(RANKS)]
        if backend == "mpi":
            mpirun = ["mpirun", "-n", "1", *ranks[0]]
            for rank in ranks[1:]:
                mpirun += [":", "-n", "1", *rank]
            # A thread that waits in Open MPI lets the one that computes have their core.
            environment = os.environ | {"OMPI_MCA_mpi_yield_when_idle": "1", "OMP_NUM_THREADS": "1"}
            started = [subprocess.Popen(mpirun, env=environment, stdout=subprocess.DEVNULL)]
        else:
            started = [subprocess.Popen(rank, env=environment, stdout=subprocess.DEVNULL)
                       for rank, environment in zip(ranks, environments())]
        if any([process.wait() for process in started]):
            sys.exit(f"compare_with_pytorch: {' '.join(map(str, command))} failed")
        fingerprint, answer = map(json.loads, file.read().splitlines())
        return answer | fingerprint


def perceptron(pytorch, options, batch):
    """What is measured in each round: by name, a function that measures it."""
    half = {"batch": batch // RANKS, "seconds": options.seconds}
    measurements = {f"PyTorch DDP, {name}": partial(pytorch.measure, **variant, **half)
                    for name, variant in PERCEPTRON.items()}
    measurements["PyTorch, no communication"] = partial(pytorch.measure, ddp=False, **half)
    program = partial(run, options.programs / "step_benchmark")
    steps = max(5, int(options.seconds * 1e3 / program(
        "gloo", "--batch-size", batch, "--warm-up", 5, "--steps", 10)["step_ms"]))
    for name, backend, *arguments in (("gloo", "gloo"), ("mpi", "mpi"), ("no communication", "gloo", "--independent")):
        measurements[f"ours, {name}"] = partial(program, backend, "--batch-size", batch, "--warm-up", 5, "--steps",
                                                steps, *arguments)
    return measurements


def resnet(pytorch, options):
    def ours(backend, *more):
        answer = run(options.programs / "synthetic_benchmark", backend, "--model", "resnet18", "--batch-size",
                     RESNET_BATCH, "--num-warmup-batches", 3, "--num-batches-per-iter", 5, "--num-iters", 1, *more)
        return answer | {"step_ms": 1e3 * RESNET_BATCH / answer["images_per_second"]}

    measurements = {f"PyTorch DDP, {name}": partial(pytorch.measure, model="resnet18",
                                                    batch=RESNET_BATCH, seconds=4, **variant)
                    for name, variant in RESNET.items()}
    return measurements | {"ours, gloo, channels first": partial(ours, "gloo"),
                           "ours, gloo": partial(ours, "gloo", "--channels-last"),
                           "ours, mpi": partial(ours, "mpi", "--channels-last")}


def median(measurements, name="step_ms"):
    return statistics.median(measurement[name] for measurement in measurements)


def report(title, batch, results, wanted):
    """Prints a table. Returns whether this project was as fast as wanted, over Gloo."""
    peer = min((name for name in results if name.startswith("PyTorch DDP")), key=lambda name: median(results[name]))
    times = {name: median(measurements) for name, measurements in results.items()}
    print(f"\n{title:46}{'ms a step':>10}{'lowest - highest':>21}{'images/s':>10}{'PyTorch DDP = 1':>17}")
    for name, measurements in results.items():
        steps = [measurement["step_ms"] for measurement in measurements]
        print(f"  {name:44}{times[name]:10.3f}{min(steps):11.3f} -{max(steps):8.3f}{batch / times[name] * 1e3:10.0f}"
              f"{times[peer] / times[name]:17.2f}")
    rate = times[peer] / times["ours, gloo"]
    right = rate >= wanted
    if "ours, no communication" in times:
        print("  ours, gloo: " + ", ".join(f"{part} {median(results['ours, gloo'], part + '_ms'):.3f} ms"
                                           for part in ("forward", "backward", "exposed", "update")))
        for name in ("ours, gloo", "ours, mpi", peer):
            alone = times["PyTorch, no communication" if name == peer else "ours, no communication"]
            print(f"  {name}: {alone / times[name]:.3f} of two independent trainings' rate")
    print(f"  {rate:.2f} times PyTorch's rate, {wanted:g} wanted: {'RIGHT' if right else 'WRONG'}", flush=True)
    return right


def main():
    options = parse_command_line()
    pytorch = PyTorch(options.pytorch)
    log = open(options.json or os.devnull, "w")
    models = [(f"perceptron, global batch {batch}", batch, WANTED.get(batch, 1.0), perceptron(pytorch, options, batch))
              for batch in options.batch_size]
    if (options.programs / "synthetic_benchmark").exists():
        batch = RANKS * RESNET_BATCH
        models.append((f"ResNet-18, global batch {batch}", batch, 1.0, resnet(pytorch, options)))
    else:
        print(f"no {options.programs}/synthetic_benchmark: no ResNet-18")
    right = True
    for title, batch, wanted, measurements in models:
        results = {name: [] for name in measurements}
        for number in range(options.rounds):
            for name, measure in measurements.items():
                results[name].append(measure())
                print(json.dumps(results[name][-1] | {"model": title, "round": number, "what": name}), file=log)
        right &= report(title, batch, results, wanted)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
