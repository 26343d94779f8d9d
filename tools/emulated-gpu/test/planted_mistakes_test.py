#!/usr/bin/env python3
"""planted_mistakes_test.py PLANTED_MISTAKES WITH_GPUS: each mistake is reported with its kernel, block, thread, line and
CUDA's error, or with its call and the reason; the corrected programs say nothing."""
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

program, with_gpus = sys.argv[1:]
anywhere = r"\d+,0,0"  # the first block and warp are another with each seed


def fault(kernel, block, thread, reason, code="IllegalAddress"):
    return rf"kernel {kernel}\(.*\), block \({block}\), thread \({thread}\): {reason}.*LINE[^\n]*\n.*: cudaError{code}:"


def of_scale(reason, code="IllegalAddress"):
    return fault("scale", anywhere, anywhere, reason, code)


def between_blocks(kernel, first, second):
    """Reported with both lines; the program goes on and finds that its result is wrong."""
    return (rf"kernel {kernel}\(.*\), block \(\d+,0,0\), thread \(\d+,0,0\): race on global memory: ({first} in no order with the "
            rf"{second}|{second} in no order with the {first}) by block \(\d+,0,0\), thread \(\d+,0,0\) at .*planted_mistakes.cu:\d+\): "
            r".*LINE[^\n]*\n[^\n]*WRONG")


failure = "LaunchFailure"
unset = "read of memory that was never written"
reports = {
    "less_or_equal": fault("add", "3,0,0", "232,0,0", ".* the first byte after a buffer of 4000 bytes"),
    "edge_of_stencil": fault("stencil", "0,0,0", "0,0,0", ".* 4 bytes before a buffer of 4000 bytes"),
    "negative_index": fault("delay", "0,0,0", "0,0,0", ".* outside the thread's own local memory"),
    "float4_at_odd_index": fault("move4", "0,0,0", anywhere, "misaligned access of 16 bytes", "MisalignedAddress"),
    "no_barrier_in_reduction": fault("sum", "0,0,0", r"\d+,0,0", "race on shared memory: (read|write) at offset .* without a "
                                     r"barrier after the (read|write) by thread \(\d+,0,0\) at .*planted_mistakes.cu:\d+\): ", failure),
    "barrier_in_branch": fault("reverse", "3,0,0", "232,0,0", "barrier in divergent code: .* waits at another one", failure),
    "dynamic_shared_too_small": fault("rotate", "0,0,0", anywhere, ".* shared memory, which has 256 bytes"),
    "shared_not_set": fault("first_of_warps", "0,0,0", "8,0,0", unset, failure),
    "lanes_missing": fault("sum_of_lanes", "0,0,0", "0,0,0", "waits forever, because thread .20,0,0. waits at bar",
                           "LaunchTimeout"),
    "assertion": r"kernel require_positive\(.*thread \(0,0,0\): .*LINE: .*Assertion `x\[threadIdx.x\] > 0` failed.*\n"
                 ".*: cudaErrorAssert:",
    "trap": fault("traps", "0,0,0", "2,0,0", "trap", failure),
    "not_in_mask": fault("wait_without_member", "0,0,0", "40,0,0", "the thread is not in its member mask", failure),
    "stack_overflow": fault("recurse", "0,0,0", "0,0,0", "stack overflow .cudaDeviceSetLimit", "HardwareStackError"),
    "no_syncwarp": fault("exchange_in_warp", "0,0,0", r"\d+,0,0", "race on shared memory", failure),
    "flag_of_different_values": fault("set_flag", "0,0,0", r"\d+,0,0", "race on shared memory: write", failure),
    "no_atomic": between_blocks("add_of_warps", "write", "(?:write|read)"),
    "no_atomic_in_block": between_blocks("add_of_warps", "write", "(?:write|read)"),
    "blocks_in_order": between_blocks("chain", "read", "write"),
    "no_fence": r"kernel sum_by_last_block\(.*race on global memory: read in no order with the write by block .*LINE",
    "lanes_ended": r"kernel sum_of_some\(.*thread \(4,0,0\): the value of lane 20 is undefined, because that thread has ended: "
                   r"shfl.*LINE[^\n]*\n[^\n]*WRONG",
    "order_of_atomics": "WRONG",
    "next_shared_array": fault("count_twice", "0,0,0", "0,0,0", r"access of 4 bytes at byte 128 of count_twice\(bool, int\*\)::once, "
                               "a shared variable of 128 bytes"),
    "too_many_blocks": r"a kernel runs for 1 s: 0 of 257 blocks are done; kernel meet\(.*\), block .* is at .*LINE",
    "bytes_for_blocks": r"a kernel runs for 1 s: \d+ of 1073741824 blocks are done; kernel traps\(bool\)",
    "no_error_checks": r"cudaFree: 0x.* was already freed.*: cudaErrorInvalidValue; the program did not look at this error \(.*mistakes.cu:\d+\)\n"
                       r".*cudaLaunchKernel: set_all\(.* \(2048,1,1\) threads.*: cudaErrorInvalidConfiguration; the program.*LINE\)\n"
                       r".*cudaMemcpy: the destination .* is not device memory: cudaErrorInvalidValue; the program did not look",
    "more_than_48_kib": r"LINE: cudaErrorInvalidValue: cudaLaunchKernel: reverse_all\(.*: 44000 . 8192 bytes of static and dynamic",
    "null_pointer": of_scale(".* a null pointer"),
    "host_pointer": of_scale(".* memory of the host"),
    "memory_not_set": of_scale(unset, failure),
    "freed": of_scale(".* which was freed"),
    "memory_of_another_device": of_scale(".* memory of device 1, to which device 0 has no access"),
    "stream_of_another_device": r"LINE: cudaError[A-Za-z]*: cudaLaunchKernel: .*scale\(.*the stream is of device 1, the current",
    "pageable_copy": r"race between streams: .*kernel scale\(float\*\) \(.*LINE\)",
    "event_too_early": r"race between streams: kernel scale.*LINE\) reads what kernel set_all.*:\d+\) on another stream writes",
    "flag_without_fence": r"race between streams: kernel set_and_tell.* writes what kernel scale\(.*LINE\) on another stream reads",
    "read_too_early": "WRONG",
    "no_wait_at_the_end": r"kernel set_all\(float\*\) had not run when the program ended: nothing waited for it \(.*LINE\)",
    "copy_not_set": r"a copy to the host takes memory that was never written: byte 0 of 4 \(.*LINE\)",
    "device_pointer": r"the host accessed device memory at 0x.*: byte 12 of an allocation of 4000 bytes .*\(.*LINE\)",
    "leak": r"leaked at exit: 1 buffer \(.*LINE\)",
}
markers = {}
with open(os.path.splitext(os.path.abspath(__file__))[0].removesuffix("_test") + ".cu", encoding="utf-8") as source:
    for number, line in enumerate(source, 1):
        if found := re.search(r"// mistake: ([\w ]+)$", line):
            markers |= dict.fromkeys(found[1].split(), number)


def run(*arguments, check=True, seed=1):
    """A program that would never end is stopped when that is reported."""
    options = ["--check", "--seed", str(seed)] if check else []
    endless = arguments in (("too_many_blocks",), ("bytes_for_blocks",))
    with subprocess.Popen([with_gpus, *options, "2", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, env={**os.environ, "EMULATED_GPU_DEADLINE": "1" if endless else "600"}) as process:
        first = process.stderr.readline() if endless else ""
        if endless:
            process.kill()
        out, err = process.communicate(timeout=400)
        return subprocess.CompletedProcess(arguments, process.returncode, out, first + err)


def check(name):
    """What is wrong with the reports of this mistake."""
    where = f"planted_mistakes.cu:{markers.get(name, markers['scale'])}\\b"
    problems = []
    for seed in (1, 71):
        wrong, corrected = run(name, seed=seed), run(name, "--corrected", seed=seed)
        if not re.search(reports[name].replace("LINE", where), wrong.stderr, re.MULTILINE):
            problems.append(f"{name}, seed {seed}: expected {reports[name]} with {where}, got: {wrong.stderr}")
        if corrected.returncode or corrected.stderr:
            problems.append(f"{name} --corrected, seed {seed}: status {corrected.returncode}: {corrected.stderr}")
    return problems


names = run("--list").stdout.split()
assert names == list(reports), "the program and this test have other mistakes"
assert run("no_syncwarp", check=False).stderr == "", "races are found with --check only"
assert "WRONG" in run("blocks_in_order", check=False).stderr, "blocks start in the order of their numbers"
with ThreadPoolExecutor(2) as pool:
    failures = sum(pool.map(check, names), [])
print("\n".join(failures) or f"{len(names)} mistakes are reported, and their corrected programs are silent")
sys.exit(bool(failures))
