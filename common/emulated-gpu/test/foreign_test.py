"""Builds and runs NVIDIA's own programs, unmodified, on emulated GPUs.

usage: foreign_test.py BUILD [--slow] [--headers DIR:DIR] [--libraries DIR:DIR] [NAME ...]

BUILD is the build folder. Without --slow only the quick rows are run; NAME (a part of a row's name) selects rows. The
sources are taken from the folder in MULTINODE_FOREIGN_SOURCES, or from ../shared/sources beside this repository: archives
(NAME.tar.xz) or folders. What is built stays in BUILD/foreign, for the next time.
Exit status: 0 every row right, 1 a row wrong, 77 nothing to run.
"""
import argparse
import dataclasses
import io
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
LIMIT = 600  # seconds to compile a file
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_rmaps_base_oversubscribe="1", PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe")
UPSTREAM = {"nccl-examples": "NVIDIA/nccl (docs/examples)", "nccl-tests": "NVIDIA/nccl-tests", "cuda-samples": "NVIDIA/cuda-samples"}


@dataclasses.dataclass
class Run:
    gpus: int
    arguments: str = ""
    processes: int = 0  # 0: without mpirun
    slow: bool = True


@dataclasses.dataclass
class Program:
    name: str
    source: str  # of UPSTREAM
    files: list
    says: str  # a regular expression that the output must contain
    runs: list
    flags: str = ""
    mpi: bool = False


def examples():
    def program(path, says, utils, mpi=False):
        files = [f"docs/examples/{path}/c/main.cc"] + (["docs/examples/common/src/utils.cc"] if utils else [])
        flags = "-Idocs/examples/common/include -lpthread"
        processes = [Run(4, processes=n, slow=n != 4) for n in (1, 2, 4)]
        if not mpi:
            yield Program(path, "nccl-examples", files, says, [Run(4, slow=False)], flags)
        if mpi or utils:
            yield Program(path + "_mpi", "nccl-examples", files, says, processes, flags + " -DMPI_SUPPORT", mpi=True)

    finalized = "All NCCL communicators finalized successfully!"
    verified = r"(?s)(correctly|verified|PASSED|Results verified).*" + finalized
    yield from program("01_communicators/01_multiple_devices_single_process", "SUCCESS", False)
    yield from program("01_communicators/02_one_device_per_pthread", r"(?m)^Success$", False)
    yield from program("01_communicators/03_one_device_per_process_mpi", "cleaned up properly", False, mpi=True)
    yield from program("03_collectives/01_allreduce", "Example completed successfully!", False)
    yield from program("04_user_buffer_registration/01_allreduce", verified, True)
    yield from program("05_symmetric_memory/01_allreduce", verified, True)
    yield from program("05_symmetric_memory/02_allgather", verified, True)


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


TABLE = [*examples(), *nccl_tests(), *samples()]


def folder_of(source, build):
    """The unpacked sources, or None."""
    sources = pathlib.Path(os.environ.get("MULTINODE_FOREIGN_SOURCES", ROOT.parent / "shared/sources"))
    archive, unpacked = sources / f"{source}.tar.xz", build / "foreign" / source
    for folder in (sources / source, sources / source.replace("-examples", "")):
        if folder.is_dir():
            return folder
    if not archive.is_file():
        return None
    if not unpacked.is_dir() or unpacked.stat().st_mtime < archive.stat().st_mtime:
        partial = unpacked.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        data = lzma.open(archive).read()
        # git archive can write a line about a broken object before the archive
        with tarfile.open(fileobj=io.BytesIO(data[data.index(b"ustar") - 257:])) as tar:
            tar.extractall(partial)
        shutil.rmtree(unpacked, ignore_errors=True)
        (partial / source).rename(unpacked)
        os.utime(unpacked)
    return unpacked


def call(command, folder, environment, limit=LIMIT):
    """Exit status and output of a command."""
    try:
        done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=limit, text=True, errors="replace", check=False)
        return done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        return 124, (late.stdout or b"").decode(errors="replace") + f"\n(stopped after {limit} s)"


def make(command, out, folder):
    """Runs a compiler. Other tests never see half a file."""
    partial = f"{out}.{os.getpid()}"
    code, text = call([*command, "-o", partial], folder, os.environ)
    if code:
        raise RuntimeError(text)
    os.replace(partial, out)


def build(program, options, folder):
    """The program's path, or None if its compiler is not installed. Raises RuntimeError."""
    kernels = any(file.endswith(".cu") for file in program.files)
    compiler = ["nvcc", "-cudart", "shared", "-arch=sm_90", "-std=c++17"] if kernels else ["mpicxx" if program.mpi else "g++"]
    if kernels and program.mpi:
        compiler += ["-ccbin", "mpicxx"]
    if not all(shutil.which(tool) for tool in (compiler[0], "mpirun" if program.mpi else "true")):
        return None
    to = options.build / "foreign/programs" / program.source
    own, linked, flags = [], [], []
    for flag in program.flags.split():
        (linked if flag.startswith("-l") else flags).append(flag)
    headers = [f"-I{path}" for path in options.headers.split(":") if path]
    for file in program.files:
        variant = "mpi" if program.mpi else "plain"
        out = to / "objects" / f"{file.replace('/', '_')}.{variant}.o"
        out.parent.mkdir(parents=True, exist_ok=True)
        if not out.is_file() or out.stat().st_mtime < (folder / file).stat().st_mtime:
            make([*compiler, *flags, *headers, "-O1", "-c", file], out, folder)
        own.append(out)
    path = to / program.name.replace("/", "_")
    if not path.is_file() or path.stat().st_mtime < max(one.stat().st_mtime for one in own):
        libraries = [f"-L{path}" for path in options.libraries.split(":") if path]
        if not kernels:
            libraries += [f"-Wl,-rpath-link={path[2:]}" for path in libraries]
        make([*compiler, *map(str, own), *libraries, "-lnccl", "-lcudart", *linked], path, folder)
    return path


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
    right, failed, left_out = 0, 0, {}
    for program in TABLE:
        label = f"{program.source}/{program.name}"
        runs = [run for run in program.runs if options.slow or not run.slow]
        if not runs or not any(name in label for name in options.names or [""]):
            continue
        folder = folder_of(program.source, options.build)
        if not folder:
            left_out.setdefault(f"no sources: get https://github.com/{UPSTREAM[program.source].split()[0]} and set "
                                f"MULTINODE_FOREIGN_SOURCES to the folder that holds it as {program.source}", []).append(label)
            continue
        try:
            path = build(program, options, folder)
        except RuntimeError as why:
            failed += 1
            print(f"WRONG {label} does not build:\n{why}", flush=True)
            continue
        if not path:
            left_out.setdefault("no nvcc or no MPI", []).append(label)
            continue
        for run in runs:
            row = f"{label} {run.arguments} ({run.gpus} GPUs, {run.processes or 1} processes)"
            start = time.monotonic()
            why = wrong(program, run, path, options)
            print(f"{'WRONG' if why else 'right'} {row} {time.monotonic() - start:.1f} s" + (f": {why}" if why else ""),
                  flush=True)
            failed += why is not None
            right += why is None
    for reason, rows in left_out.items():
        print(f"left out, {reason}: {', '.join(rows)}")
    print(f"{right} right, {failed} wrong")
    return 1 if failed else 0 if right else 77


if __name__ == "__main__":
    sys.exit(main())
