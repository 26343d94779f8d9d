#!/usr/bin/env python3
"""planted_mistakes_test.py PLANTED_MISTAKES WITH_GPUS: each mistake is reported with its kernel, block, thread and line,
or with its call and the reason; the corrected programs say nothing."""
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

program, with_gpus = sys.argv[1:]


def fault(kernel, block, thread, reason):
    return rf"kernel {kernel}\(.*\), block \({block}\), thread \({thread}\): {reason}.*LINE"


def of_scale(reason):
    return fault("scale", "0,0,0", "0,0,0", reason)


def call(name, reason):
    return f"LINE: cudaError[A-Za-z]*: {name}: .*{reason}"


race = "race on shared memory: {} at offset .* without a barrier after the {} by"
unset = "read of memory that was never written"
reports = {
    "less_or_equal": fault("add", "3,0,0", "232,0,0", ".* the first byte after a buffer of 4000 bytes"),
    "edge_of_stencil": fault("stencil", "0,0,0", "0,0,0", ".* 4 bytes before a buffer of 4000 bytes"),
    "array_too_small": fault("count_digits", "0,0,0", "0,0,0", unset),
    "negative_index": fault("delay", "0,0,0", "0,0,0", ".* outside the thread's own local memory"),
    "variable_too_small": fault("fill_table", "0,0,0", "32,0,0", ".* the first byte after a buffer of 128 bytes"),
    "float4_at_odd_index": fault("move4", "0,0,0", "0,0,0", "misaligned access of 16 bytes"),
    "no_barrier_in_reduction": fault("sum", "0,0,0", r"\d+,0,0", race.format("(read|write)", "(read|write)")),
    "no_barrier_after_tile": fault("product", r"\d,\d,0", r"\d+,\d+,0", race.format("write", "read")),
    "barrier_in_branch": fault("reverse", "3,0,0", "232,0,0", "barrier in divergent code: .* waits at another one"),
    "dynamic_shared_too_small": fault("rotate", "0,0,0", "64,0,0", ".* shared memory, which has 256 bytes"),
    "shared_not_set": fault("first_of_warps", "0,0,0", "8,0,0", unset),
    "lanes_missing": fault("sum_of_lanes", "0,0,0", "0,0,0", "waits forever, because thread .20,0,0. waits at bar"),
    "assertion": r"kernel require_positive\(.*thread \(0,0,0\): .*LINE: .*Assertion `x\[threadIdx.x\] > 0` failed",
    "null_pointer": of_scale(".* a null pointer"),
    "host_pointer": of_scale(".* memory of the host"),
    "memory_not_set": of_scale(unset),
    "freed": of_scale(".* which was freed"),
    "memory_of_another_device": of_scale(".* memory of device 1, to which device 0 has no access"),
    "stream_of_another_device": call("cudaLaunchKernel", r"scale\(.*the stream is of device 1, the current"),
    "no_wait_for_copy": of_scale(unset),
    "pageable_copy": of_scale("uses a buffer into which cudaMemcpy from pageable memory may still be copying"),
    "too_much_shared": call("cudaLaunchKernel", r"rotate\(.* 60000 bytes of static and dynamic shared memory"),
}
markers = {}
with open(os.path.splitext(os.path.abspath(__file__))[0].removesuffix("_test") + ".cu", encoding="utf-8") as source:
    for number, line in enumerate(source, 1):
        if found := re.search(r"// mistake: (\w+)$", line):
            markers[found[1]] = number


def run(*arguments):
    return subprocess.run([with_gpus, "--check", "2", program, *arguments], capture_output=True, text=True, timeout=100)


def check(name):
    """What is wrong with the reports of this mistake."""
    where = f"planted_mistakes.cu:{markers.get(name, markers['scale'])}\\b"
    wrong, corrected = run(name), run(name, "--corrected")
    problems = []
    if not re.search(reports[name].replace("LINE", where), wrong.stderr, re.MULTILINE):
        problems.append(f"{name}: expected {reports[name]} with {where}, got: {wrong.stderr}")
    if corrected.returncode or corrected.stderr:
        problems.append(f"{name} --corrected: status {corrected.returncode}: {corrected.stderr}")
    return problems


names = run("--list").stdout.split()
assert names == list(reports), "the program and this test have other mistakes"
with ThreadPoolExecutor(2) as pool:
    failures = sum(pool.map(check, names), [])
print("\n".join(failures) or f"{len(names)} mistakes are reported, and their corrected programs are silent")
sys.exit(bool(failures))
