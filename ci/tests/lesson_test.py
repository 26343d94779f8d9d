"""Tests a lesson program as a reader would use it: compiled by the line that its chapter's README prints.

usage: lesson_test.py CHAPTER NAME --source env.sh [--mistakes] [--headers DIR:DIR] [--libraries DIR] [--emulated-gpus DIR]

CHAPTER/test/lessons.json has, for each lesson program:
  run          the command that runs it; {n} stands for the number of processes
  processes    the numbers of processes to run it with
  answer       a regular expression, with {n} as above; what its groups match in the output is the program's answer
  tool         a command of the chapter's tool that computes the same (optional)
  tool_answer  a regular expression for the tool's output; its groups must match the same answer
  mistakes     name: [text in the source, text to put in its place]; each must give exit status 1
  mistakes_at  the number of processes to run the mistakes with; default: 2, or 1 if `processes` has only 1
  gpu          true: needs the CUDA Toolkit and NCCL, and to run a GPU, or the emulated ones of --emulated-gpus
  exercise     true: the program is CHAPTER/exercises/NAME.cpp, which the reader completes, with CHAPTER/exercises/
               solutions/NAME.diff applied; without it, it must compile and give exit status 1. Where it has
               no main(), the reader writes the whole program

The compile line stands in the head comment of the program and, but for an exercise, as a command in a page of the chapter. The quick
test compiles it with warnings as errors, starts it as another MPI's mpirun would, which must be WRONG, compares the
answers, and plants the first mistake, which is the skeleton of an exercise. With --mistakes the other mistakes are
planted, clang++ (where installed) checks the program, and the program runs with a full disk (/dev/full) as its standard
output: it must report that. All are compiled with the line's -O2: without it they would compile 0.2 s sooner, and train
for 8 s longer.
--headers and --libraries say where CMake found CUDA and NCCL.
Exit status: 0 passed, 1 failed, 77 something that the line needs is not installed.
"""
import argparse
import json
import os
import pathlib
import re
import shlex
import shutil
import sys
import tempfile

import clean_clone

LIMIT = 600  # seconds for one command: generous, for a busy machine
# mpirun of Open MPI 4 and 5 kills the other ranks after a failure: else it waits a second for them first.
AT_ONCE = {"OMPI_MCA_odls_base_sigkill_timeout": "0", "PRTE_MCA_odls_base_sigkill_timeout": "0"}
QUICKLY = " -DOMPI_SKIP_MPICXX"  # Open MPI's own C++ header takes 2 s, and is not free of warnings
WARNINGS = " -Wall -Wextra -Werror" + QUICKLY
ONLY_CHECK = " -fsyntax-only -Wno-unused-command-line-argument"  # for clang++, which warns of -l then


class Failure(Exception):
    pass


def compile_line(source, pages):
    """The line in the program's head that compiles it; one of the pages, if there are any, must print the same."""
    head = source.read_text().split("#include", 1)[0]
    found = re.search(rf"^//[ ]+(\S.*\b{re.escape(source.name)} .*-o {source.stem}\b.*)$", head, re.M)
    if not found:
        raise Failure(f"{source}: no line of the head comment compiles it with -o {source.stem}")
    line = found[1].rstrip()
    if pages and not any(f"\n$ {line}\n" in page.read_text() for page in pages):
        raise Failure(f"no page in {source.parent} prints the compile line of {source.name}: $ {line}")
    return line


def main():
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("chapter", type=pathlib.Path)
    parser.add_argument("name")
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--mistakes", action="store_true")
    parser.add_argument("--headers", default="")
    parser.add_argument("--libraries", default="")
    parser.add_argument("--emulated-gpus", default="")
    options = parser.parse_args()
    chapter, name, env = options.chapter.resolve(), options.name, options.source.resolve()
    lesson = json.loads((chapter / "test/lessons.json").read_text())[name]
    exercise = lesson.get("exercise", False)
    where = chapter / "exercises" if exercise else chapter
    source = next((where / f"{name}{end}" for end in (".cpp", ".cu") if (where / f"{name}{end}").exists()), None)
    if not source:
        raise Failure(f"{where} has neither {name}.cpp nor {name}.cu")
    line = compile_line(source, [] if exercise else list(chapter.glob("*.md")))
    compiler = line.split()[0]

    environment = dict(os.environ, CPATH=options.headers, LIBRARY_PATH=options.libraries, **AT_ONCE,
                       SLURM_STEP_NUM_TASKS="2")  # as below srun: the innermost launcher, mpirun, is right
    found = clean_clone.run([f". {shlex.quote(str(env))}", f"type -P {compiler}"], LIMIT, where, environment)[0] == 0
    if not found or lesson.get("gpu") and not options.emulated_gpus:
        print(f"{name} needs {compiler}{', CUDA and NCCL' if lesson.get('gpu') else ''}: not installed")
        return 77
    if lesson.get("gpu") and options.emulated_gpus and not shutil.which("nvidia-smi"):
        environment.update(EMULATED_GPUS="4", LD_LIBRARY_PATH=options.emulated_gpus)
        if options.libraries:  # else env.sh sets it
            environment["NVCC_APPEND_FLAGS"] = "-cudart shared"

    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / source.name

        def start(command, n=""):
            return clean_clone.run([f". {shlex.quote(str(env))}", command.replace("{n}", str(n))], LIMIT, folder,
                                   environment)

        def build(text, command):
            program.write_text(text)
            status, output = start(command)
            if status:
                raise Failure(f"{command}\nends with exit status {status}:\n{output}")

        def answer(command, pattern, n):
            status, output = start(command, n)
            found = re.search(pattern.replace("{n}", str(n)), output, re.M)
            if status or not found:
                raise Failure(f"{command} with n = {n}: exit status {status}, no answer '{pattern}' in\n{output}")
            return found.groups()

        right = source.read_text()
        wrong = {}
        from_nothing = exercise and "main(" not in right
        if exercise:
            if not from_nothing:
                wrong["the skeleton"] = right
            program.write_text(right)
            solution = shlex.quote(f"{where}/solutions/{name}.diff")
            status, output = clean_clone.run([f"patch {program} {solution}"], LIMIT, folder, environment)
            if status:
                raise Failure(f"the solution does not fit:\n{output}")
            right = program.read_text()
        for mistake, (before, after) in lesson["mistakes"].items():
            if right.count(before) != 1:
                raise Failure(f"mistake '{mistake}': {source.name} has '{before}' {right.count(before)} times, not once")
            wrong[mistake] = right.replace(before, after)
        if not wrong:
            raise Failure(f"{name}: no mistake is planted, so nothing shows that it can fail")
        warnings = QUICKLY if compiler == "nvcc" else WARNINGS
        n = lesson.get("mistakes_at", min(2, max(lesson["processes"])))
        bare = lesson["run"].replace("who_waits --after 2 --end -- ", "")  # it waits 60 s where only rank 0 fails

        if options.mistakes:
            if compiler != "nvcc" and shutil.which("clang++"):
                build(right, re.sub(r"^(mpicxx|g\+\+) ", lambda word: "OMPI_CXX=clang++ MPICH_CXX=clang++ mpicxx "
                                    if word[1] == "mpicxx" else "clang++ ", line) + WARNINGS + ONLY_CHECK)
            build(right, line + QUICKLY)
            (pathlib.Path(folder) / "full").write_text('exec "$@" >/dev/full')
            status, output = start(bare.replace(f"./{name}", f"sh ./full ./{name}"), n)
            if not from_nothing and (status == 0 or f"{name}: standard output: No space left on device" not in output):
                raise Failure(f"whose output cannot be written, {name} ends with exit status {status}:\n{output}")
        else:
            build(right, line + warnings)
            if bare.startswith("mpirun -n {n} ") and not from_nothing:
                status, output = start(bare.replace("mpirun -n {n}", "PMI_SIZE=4"), 1)
                if status not in (1, 2) or not re.search("^WRONG: .*4 processes, MPI says 1: ", output, re.M):
                    raise Failure(f"under another MPI's mpirun, {name} ends with exit status {status}:\n{output}")
            if lesson.get("gpu"):  # without a GPU, the error names file, line and call
                status, output = start("export CUDA_VISIBLE_DEVICES= && " + lesson["run"], min(lesson["processes"]))
                found = re.search(rf"{re.escape(source.name)}:(\d+): .*\b(cudaGetDeviceCount\(&devices\)): no ", output)
                if status != 1 or not found or found[2] not in right.splitlines()[int(found[1]) - 1]:
                    raise Failure(f"without a GPU, {name} ends with exit status {status}:\n{output}")
            for processes in lesson["processes"]:
                found = answer(lesson["run"], lesson["answer"], processes)
                print(f"{name} with n = {processes}: {' '.join(found)}")
                if "tool" in lesson and found != (tool := answer(lesson["tool"], lesson["tool_answer"], processes)):
                    raise Failure(f"{name} answers {found} with n = {processes}, the tool {tool}: {lesson['tool']}")

        for mistake in list(wrong)[1:] if options.mistakes else list(wrong)[:1]:
            build(wrong[mistake], line + QUICKLY)
            status, output = start(lesson["run"], n)
            if status != 1:
                raise Failure(f"'{mistake}' gives exit status {status}, not 1:\n{output}")
            print(f"{name} with a planted mistake ({mistake}): exit status 1")
    return 0


try:
    sys.exit(main())
except Failure as failure:
    print(failure)
    sys.exit(1)
