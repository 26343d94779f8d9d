"""who_waits on test suites of others: MPI-CorrBench (tudasc/mpi-corrbench, programs with one known mistake each) and the
tests of MPICH (pmodels/mpich, test/mpi), which are right.

usage: who_waits_suites_test.py BUILD corrbench|mpich-suite open-mpi|mpich [--only REGEX]

Each program runs without and with who_waits. One that ends must end with the same status and output, and nothing certain
may be said of it. One that hangs must be explained with the right cause, rank and call. The sources are taken from the
folders mpi-corrbench and mpich of the folder in MULTINODE_FOREIGN_SOURCES, or of ../shared/sources beside this repository.
Exit status: 0 every program right, 1 a program wrong, 77 nothing to run.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "common/emulated-gpu/test"))
import foreign_test  # pylint: disable=wrong-import-position

MPI = {"open-mpi": ("mpicc", "mpif90", "mpirun"), "mpich": ("mpicc.mpich", "mpif90.mpich", "mpirun.mpich")}
CONFIGURATION = """
#define HAVE_LONG_DOUBLE 1
#define HAVE_LONG_LONG 1
#define HAVE_MPI_WIN_CREATE 1
#define HAVE_MPI_IO 1
#define HAVE_STDARG_H 1
#define HAVE_STDINT_H 1
#define HAVE_STDLIB_H 1
#define HAVE_STRING_H 1
#define HAVE_SYS_RESOURCE_H 1
#define HAVE_SYS_TIME_H 1
#define HAVE_UNISTD_H 1
#define HAVE_PTHREAD_BARRIER_INIT 1
#define HAVE_PTHREAD_H 1
#define HAVE_INTTYPES_H 1
#define HAVE_COMPLEX_H 1
#define HAVE_DOUBLE__COMPLEX 1
#define HAVE_FLOAT__COMPLEX 1
#define POINTERINT_t long
#define SIZEOF_VOID_P 8
#define THREAD_PACKAGE_NAME THREAD_PACKAGE_POSIX
"""
# Of tests that MPICH runs in one program. From an archive, the linker takes it where a test has no main of its own.
MAIN = r"""
#include "mpitest.h"
#include <string.h>
int main(int argc, char **argv) {
  char arguments[1000] = "";
  for (int i = 1; i < argc; ++i) strcat(strcat(arguments, argv[i]), " ");
  MTest_Init(&argc, &argv);
  int errors = run(arguments);
  MTest_Finalize(errors);
  return MTestReturnValue(errors);
}
"""

# Programs of MPI-CorrBench that hang: a part of their names, whether that is proved, and what is said.
FIRST_IS_LATE = r"late: rank 0 .* is"
HANGS = [
    (r"ArgMismatch-MPIReduce-root", True, "mismatch: .*rank 0: MPI_Reduce.* root 0.*rank 1: MPI_Reduce.* root 1"),
    (r"MisplacedCall-MPIBarrier-Deadlock", True, "mismatch: .*rank 0: MPI_Barrier.*rank 1: MPI_Bcast"),
    (r"Arg(?:Error|Mismatch)-MPIGather-(?:Send)?Type", True, "mismatch: .*rank [01]: MPI_Gather.*rank [01]: MPI_Gather"),
    (r"MissingCall-MPI(Gather|Reduce)-Deadlock", True, r"deadlock: .*rank 1 is not in MPI_\1: rank 1 is in MPI_Finalize"),
    (r"-Tag(?:-\d)?$", True, "deadlock: .*it has sent one with tag .* wants tag"),
    (r"MisplacedCall-MPIRecv-Deadlock|deadlock_send_recv", True, "deadlock: .*0 waits for 1, 1 waits for 0: deadlock"),
    (r"MissingCall-MPISend-Deadlock", True, "deadlock: .*rank 0 does not send to 1: rank 0 is in MPI_Finalize"),
    (r"ArgError-MPII?Send-Rank", True, "deadlock: .*rank 0 does not send to 1: rank 0 is in MPI_Finalize"),
    (r"rma/", False, FIRST_IS_LATE + " in a call of MPI that is not recorded"),
    # Another thread may do anything.
    (r"openmp/.*two_collectives", False, "(late: rank [01] .*another of its threads|mismatch: )"),
    (r"openmp/.*request_reuse", False, "(late: rank 0|cannot tell: )"),
    (r"openmp/.*deadlock", False, FIRST_IS_LATE),
]


class Program:
    def __init__(self, name, sources, flags, ranks, arguments=(), fortran=False):  # pylint: disable=too-many-arguments
        self.name, self.sources, self.flags, self.ranks = name, sources, flags, ranks
        self.arguments, self.fortran = list(arguments), fortran
        self.label = " ".join([name, str(ranks), *self.arguments])


def corrbench(folder):
    level = folder / "micro-benches/0-level"
    flags = ["-fopenmp", f"-I{level}/correct/include", f"-I{level}/openmp"]
    for source in sorted(level.rglob("*.c")):
        yield Program(str(source.relative_to(level))[:-2], [source], flags, 2)


def mpich_suite(folder, most_ranks=10):
    """The programs of the testlists that need no special hardware, memory or build of MPICH."""
    top = folder / "test/mpi"
    for part in ("coll", "pt2pt", "comm", "topo", "threads/pt2pt", "threads/comm", "threads/coll", "threads/rma", "threads/init",
                 "attr", "errhan", "group", "init", "datatype", "rma", "f77/pt2pt", "f77/coll", "f77/comm", "f77/topo",
                 "f77/datatype", "f08/pt2pt", "f08/coll", "f08/comm", "f08/topo", "f08/datatype"):
        makefile = (top / part / "Makefile.am").read_text().replace("\\\n", " ")
        listed = dict(re.findall(r"(?m)^(\w+)_SOURCES\s*=\s*(.*)$", makefile))
        defines = dict(re.findall(r"(?m)^(\w+)_CPPFLAGS\s*=\s*(.*)$", makefile))
        end = {"f77": ".f", "f08": ".f90"}.get(part[:3], ".c")
        helper = {"f77": ["util/mtest_f77.f"], "f08": ["util/mtest_f08.f90"]}.get(part[:3], ["util/mtest_thread.c" if "threads" in part else "util/mtest_single.c"])
        found = set()
        for line in next((top / part).glob("testlist*")).read_text().splitlines():
            if re.search(r"^#|^\s*$|@|mem=|=device|=reg_host|=shared|env=", line):
                continue
            name, ranks, *more = line.split()
            arguments = [one[4:] for one in more if one.startswith("arg=")]
            files = [top / part / one for one in listed.get(name, name + end).split() if not one.endswith(".h")]
            if int(ranks) > most_ranks or (name, ranks, *arguments) in found or not all(one.exists() for one in files):
                continue
            found.add((name, ranks, *arguments))
            flags = [one for one in defines.get(name, "").split() if one.startswith("-D")]
            yield Program(f"{part}/{name}", [*files, *(top / one for one in helper)], [*flags, f"-I{top / part}"], int(ranks), arguments, end != ".c")


def build_helpers(folder, to, compiler):
    """The library of MPICH's tests."""
    top = folder / "test/mpi"
    (to / "include").mkdir(parents=True, exist_ok=True)
    (to / "include/mpitestconf.h").write_text(CONFIGURATION)
    (to / "include/mtest_mpix.h").write_text("")
    (to / "dtpoolsconf.h").write_text("#define HAVE_STDINT_H 1\n#define HAVE_STDLIB_H 1\n")
    flags = ["-w", f"-I{to}/include", f"-I{top}/include", f"-I{top}/dtpools/include"]
    (to / "main.c").write_text(MAIN)
    objects = []
    for source in [to / "main.c", top / "util/mtest.c", top / "util/mtest_common.c", top / "util/dtypes.c", *sorted((top / "dtpools/src").glob("*.c"))]:
        objects.append(to / f"{source.stem}.o")
        subprocess.run([compiler, *flags, "-c", source, "-o", objects[-1]], check=True)
    (to / "libmtest.a").unlink(missing_ok=True)
    subprocess.run(["ar", "rcs", to / "libmtest.a", *objects], check=True)
    return flags, [to / "libmtest.a"]


def build(program, to, compilers, flags, libraries):
    """Its path; None if this MPI has not all that it needs."""
    path = to / (program.name.replace("/", "."))
    if not path.exists():
        part, modules = f"{path}.part", to / "modules" / path.name
        modules.mkdir(parents=True, exist_ok=True)
        command = [compilers[program.fortran], "-w", "-O1", *([*flags, "-fcommon"] if not program.fortran else ["-fallow-argument-mismatch", f"-J{modules}"]),
                   *program.flags, *reversed(program.sources), *(libraries if not program.fortran else []), "-o", part, "-lm", "-lpthread"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        path.with_name(path.name + ".log").write_text(shlex.join(map(str, command)) + "\n" + done.stderr)
        if done.returncode:
            return None
        os.replace(part, path)
    return path


def run(program, path, launch, around, limit):
    """What a program said, with its exit status, None if it has not ended in time, and who_waits' explanations."""
    with tempfile.TemporaryDirectory() as home:
        lines = pathlib.Path(home) / "lines"
        environment = {**foreign_test.ENVIRONMENT, "HOME": home, "MPITEST_RETURN_WITH_CODE": "yes", "OMP_NUM_THREADS": "2",
                       "OMPI_MCA_btl": "^openib,ofi", "OMPI_MCA_pml": "ob1"}
        command = ["timeout", "-k", "5", str(limit), launch, "-n", str(program.ranks), *around, path, *program.arguments]
        done = subprocess.run(command, cwd=home, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", check=False)
        said = [json.loads(line) for line in lines.read_text().splitlines()] if lines.exists() else []
    return {"status": None if done.returncode in (124, 137) else done.returncode, "out": done.stdout, "err": done.stderr, "said": said}


def essence(result):
    """Status and lines of output, without numbers, the text of MPICH's launcher and the warnings of its library."""
    lines = re.sub(r"(?s)(^|\n)===+\n.*|[^\n]*UCX  WARN[^\n]*", "\n", result["out"])
    return result["status"] and result["status"] % 128, set(re.sub(r"0x[0-9a-f]+|-?[\d.]+", "#", lines).split("\n")) - {""}


def difference(program, alone, watched, mpi):
    """How a program that ends is disturbed, or ""."""
    certain = [one for one in watched["said"] if one["certain"]]
    if alone["status"] == 0 and certain:
        return f"it accuses a program that is right: {certain}"
    (status, lines), (status_with, lines_with) = essence(alone), essence(watched)
    if bool(status) != bool(status_with) or (status != status_with and mpi != "mpich"):
        return f"exit status {status_with}, not {status}: {watched['err'][-500:]}"
    if status == 0 and lines != lines_with:
        return f"it prints {sorted(lines_with - lines)}, not {sorted(lines - lines_with)}"
    # Each error must be of a call that the program makes. Open MPI's launcher may lose the error.
    source = "".join(one.read_text(errors="replace") for one in program.sources) + alone["err"]
    wrong = [one for one in re.findall(r"(?:error occurred in MPI_|Fatal error in (?:internal_|P?MPI_))(\w+)", watched["err"]) if one not in source]
    return f"the error is one of {wrong}" if wrong else ""


def wrong_explanation(program, watched):
    """What is wrong with the explanation of a program that hangs, or ""."""
    said = "\n".join(one["cause"] + ": " + "\n".join(one["lines"] + one["groups"]) for one in watched["said"])
    for pattern, certain, says in HANGS:
        if match := re.search(pattern, program.name):
            says = match.expand(says) if match.groups() else says
            right = re.search(f"(?s){says}", said) and any(one["certain"] for one in watched["said"]) == certain
            return "" if right else f"it does not say '{says}': {said or watched['err'][-500:]}"
    return f"there is no row for it: {said}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("suite", choices=["corrbench", "mpich-suite"])
    parser.add_argument("mpi", choices=MPI)
    parser.add_argument("--only", default="", help="regular expression for programs")
    options = parser.parse_args()
    options.build = options.build.resolve()
    *compilers, launch = MPI[options.mpi]
    of_corrbench = options.suite == "corrbench"
    folder = foreign_test.folder_of("mpi-corrbench" if of_corrbench else "mpich", options.build)
    if not folder or not all(map(shutil.which, MPI[options.mpi])):
        print(f"the sources of {options.suite} or {launch} are not here")
        return 77
    to = options.build / "foreign/programs" / f"{options.suite}-{options.mpi}"
    to.mkdir(parents=True, exist_ok=True)
    flags, libraries = ([], []) if of_corrbench else build_helpers(folder, to, compilers[0])
    programs = [one for one in (corrbench if of_corrbench else mpich_suite)(folder) if re.search(options.only, one.label)]
    who_waits = [options.build / "03-message-passing/who_waits", "--after", "2" if of_corrbench else "0.5", "--json", "lines", "--"]
    counts = collections.Counter()
    for program in programs:
        path = build(program, to, compilers, flags, libraries)
        if not path:
            counts["not built"] += 1
            continue
        problem = ""
        for _ in range(3 if of_corrbench else 1):  # the outcome of a mistake may be another each time
            alone = run(program, path, launch, [], 15 if of_corrbench else 60)
            if alone["status"] is None and not of_corrbench:
                counts["slow or hangs without who_waits"] += 1
                break
            watched = run(program, path, launch, who_waits, 120)
            kind = "hangs" if alone["status"] is None else "ends" if alone["status"] == 0 else "fails"
            problem = wrong_explanation(program, watched) if kind == "hangs" else difference(program, alone, watched, options.mpi)
            if not problem:
                counts[kind] += 1
                break
        counts["WRONG"] += bool(problem)
        if problem:
            print(f"WRONG  {program.label}: {problem}", flush=True)
    print(f"{options.suite}, {options.mpi}: {len(programs)} programs: {', '.join(f'{number} {what}' for what, number in counts.items() if number)}")
    return 1 if counts["WRONG"] else 0


if __name__ == "__main__":
    sys.exit(main())
