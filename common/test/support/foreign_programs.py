"""Other people's programs, as the tests of the tools use them: where their sources are, and how to build them, unmodified.

The sources are taken from the folder in MULTINODE_FOREIGN_SOURCES, or from ../shared/sources beside this repository: archives
(NAME.tar.xz) or folders. What is built stays in BUILD/foreign, for the next time.
"""
import dataclasses
import io
import lzma
import os
import pathlib
import shutil
import subprocess
import tarfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
LIMIT = 600  # seconds to compile a file
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_rmaps_base_oversubscribe="1", PRTE_MCA_rmaps_default_mapping_policy="slot:oversubscribe")
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


def nccl_examples():
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
