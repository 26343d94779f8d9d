"""Builds and runs NVIDIA's own programs, unmodified, on emulated GPUs.

usage: foreign_test.py BUILD [--slow] [--headers DIR:DIR] [--libraries DIR:DIR] [NAME ...]

BUILD is the build folder. Without --slow only the quick rows are run; NAME (a part of a row's name) selects rows.
foreign_programs.py says where the sources come from, and what is kept.
Exit status: 0 every row right, 1 a row wrong, 77 nothing to run.
"""
import argparse
import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "common/test/support"))
from foreign_programs import ENVIRONMENT, UPSTREAM, Program, Run, build, call, folder_of, nccl_examples


def nccl_tests():
    right = "Out of bounds values : 0 OK"
    sizes = "-b 8 -e 4K -f 8 -n 1 -w 0 -c 1"
    for name in ("all_reduce", "all_gather", "broadcast", "reduce_scatter", "reduce", "alltoall", "alltoallv", "scatter",
                 "gather", "sendrecv", "hypercube"):
        yield Program(name + "_perf", "nccl-tests",
                      [f"src/{name}.cu", "src/common.cu", "src/util.cu", "src/timer.cc", "os/linux.cc",
                       "verifiable/verifiable.cu"], right,
                      # hypercube: with -g its steps are one group, in which a rank sends what it has not received yet
                      [Run(4, sizes, 4), *(Run(4, f"{sizes} -g {4 // n}", n) for n in (1, 2) if name != "hypercube"),
                       *(Run(2, f"{sizes} -o {operation}", 2) for operation in ("avg", "max", "prod") if "reduce" in name),
                       Run(4, f"{sizes} -t 2", 2), Run(4, f"{sizes} -G 1", 2),
                       *(Run(2, f"-b 64 -e 1K -f 16 -n 1 -w 0 -c 1 -d {type}", 2)
                         for type in ("half", *(("int8", "uint64", "bfloat16", "double") if name == "all_reduce" else ())))],
                      "-DNCCL_OS_LINUX -DMPI_SUPPORT -Isrc -Ios --extended-lambda", mpi=True)


def samples():
    def program(folder, files, says, runs=None, **more):
        name = folder.split("/")[1]
        return Program(name, "cuda-samples", [f"Samples/{folder}/{file}" for file in files.split()], says,
                       runs or [Run(1)], "-ICommon", **more)

    yield program("0_Introduction/vectorAdd", "vectorAdd.cu", "Test PASSED", [Run(1, slow=False)])
    yield program("0_Introduction/matrixMul", "matrixMul.cu", "Result = PASS", [Run(1, "-wA=64 -hA=64 -wB=64 -hB=64")])
    yield program("0_Introduction/simpleAtomicIntrinsics", "simpleAtomicIntrinsics.cu simpleAtomicIntrinsics_cpu.cpp",
                  "completed, returned OK", [Run(1, slow=False)])
    yield program("0_Introduction/simpleMPI", "simpleMPI.cu simpleMPI.cpp", "PASSED", [Run(2, "", 2)], mpi=True)
    kinds = [Run(1, f"--n=65536 --type={t} --kernel={k} --threads=128") for t in ("int", "float", "double") for k in (0, 3, 6)]
    yield program("2_Concepts_and_Techniques/reduction", "reduction.cpp reduction_kernel.cu", "Test passed", kinds)
    yield program("2_Concepts_and_Techniques/radixSortThrust", "radixSortThrust.cu", "Test passed", [Run(1, "-n=16384")])
    yield program("2_Concepts_and_Techniques/shfl_scan", "shfl_scan.cu", r"CPU verify result diff \(GPUvsCPU\) = 0")


TABLE = [*nccl_examples(), *nccl_tests(), *samples()]


def wrong(program, run, path, options):
    """What is wrong with a run, or None."""
    command = [str(path), *run.arguments.split()]
    if run.processes:
        command = ["mpirun", "-n", str(run.processes), *command]
    code, text = call([str(options.build / "emulated-gpu/with-gpus"), str(run.gpus), *command], options.build / "foreign",
                      ENVIRONMENT, 300)
    if code:
        return f"exit status {code}\n{text}"
    if not re.search(program.says, text):
        return f"the output does not contain {program.says}\n{text}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--headers", default="")
    parser.add_argument("--libraries", default="")
    options = parser.parse_intermixed_args()
    options.build = options.build.resolve()
    (options.build / "foreign").mkdir(exist_ok=True)
    right = failed = 0
    for program in TABLE:
        label = f"{program.source}/{program.name}"
        runs = [run for run in program.runs if options.slow or not run.slow]
        if not runs or not any(name in label for name in options.names or [""]):
            continue
        folder = folder_of(program.source, options.build)
        if not folder or not all((folder / file).is_file() for file in program.files):
            print(f"left out {label}: no sources: get https://github.com/{UPSTREAM[program.source].split()[0]} and set "
                  f"MULTINODE_FOREIGN_SOURCES to the folder that holds it as {program.source}")
            continue
        try:
            path = build(program, options, folder)
        except RuntimeError as why:
            failed += 1
            print(f"WRONG {label} does not build:\n{why}", flush=True)
            continue
        if not path:
            print(f"left out {label}: no nvcc or no MPI")
            continue
        for run in runs:
            row = f"{label} {run.arguments} ({run.gpus} GPUs, {run.processes or 1} processes)"
            start = time.monotonic()
            why = wrong(program, run, path, options)
            print(f"{'WRONG' if why else 'right'} {row} {time.monotonic() - start:.1f} s" + (f": {why}" if why else ""),
                  flush=True)
            failed += why is not None
            right += why is None
    print(f"{right} right, {failed} wrong")
    return 1 if failed else 0 if right else 77


if __name__ == "__main__":
    sys.exit(main())
