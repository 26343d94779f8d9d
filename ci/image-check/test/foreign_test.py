"""node_check, rdma_tune and explore on machines and messages that others recorded and labelled.

usage: foreign_test.py BUILD, the build folder

The folder in MULTINODE_FOREIGN_SOURCES, or ../shared/sources beside this repository, holds some of
    hwloc   open-mpi/hwloc (tests/hwloc/linux): /sys and /proc of 42 machines, with what hwloc says of each
    loghub  logpai/loghub (Linux, Thunderbird, BGL, HPC): 2,000 lines each of the logs of real machines
    gpud    leptonai/gpud: lines of the kernel's log, each with whether it is a fault
Exit status: 0 all as expected, 1 something is not, 77 there are no sources.
"""
import csv
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
SOURCES = pathlib.Path(os.environ.get("MULTINODE_FOREIGN_SOURCES", ROOT.parent / "shared/sources"))
BUILD = pathlib.Path(sys.argv[1])
# True: two cards with mlx5_core, and neither class/infiniband nor a folder infiniband in them.
TRUE_FINDINGS = {"32intel64-2p8co2t+8ve": ["pci_nics"]}
# hwloc counts what their cgroups allow, explore all of the machine; the last two are made up, and hwloc 2.9 of Debian 12
# counts their NUMA nodes in another way.
NOT_COMPARED = {"16amd64-4n4c-cgroup-distance-merge", "16em64t-4s2ca2c-cpusetreorder", "32amd64-4s2n4c-cgroup2", "4fake-4gr1nu1pu",
                "fakeheterocpunuma", "fakememinitiators-1np2c+1npp+gi"}
TEST = r'line:\s*"((?:[^"\\]|\\.)+)",\s*want:\s*(true|false)'
GPUD = {  # file: lines with labels; how many faults are named, how many there are, alarms at other lines, and those
    # Not named: what no kernel prints, reads beyond the end of a device, and device-mapper, which also fails if it is full.
    "disk/kmsg_matcher_test.go": (TEST, (25, 35, 0, 15)),
    # Not named: "insufficient power", which is harmless on NVIDIA's own machines, a command that a user may not give, and
    # what the driver never prints.
    "accelerator/nvidia/infiniband/kmsg_matcher_test.go": (TEST, (1, 18, 0, 9)),
    # The 4 alarms are fatal in NVIDIA's catalog; gpud's pattern has no digits.
    "accelerator/nvidia/xid/nvlink_logs_test.go": (r'"(NVRM: Xid [^"]*)", apiv1.EventType(\w+)', (12, 12, 4, 23)),
}
wrong, ran = [], False


def check(name, ours, theirs):
    if ours != theirs:
        wrong.append(f"{name}: {ours}, and {theirs} is expected")


def call(name, command, statuses=(0,), **environment):
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode not in statuses:
        wrong.append(f"{name}: {command[0]} ended with {done.returncode}: {done.stderr[-300:]}")
    return done


def look(name, *arguments):
    """What node_check finds: {what: finding}."""
    with tempfile.NamedTemporaryFile() as answer:
        call(name, [BUILD / "ci/image-check/node_check", "--nvml", "libnone.so", "--json", answer.name, *arguments], (0, 1, 77))
        findings = [json.loads(line) for line in open(answer.name)]
    return {finding["what"]: finding for finding in findings if "what" in finding}


def kernel_log(texts):
    """The texts that node_check takes for faults."""
    with tempfile.NamedTemporaryFile("w") as log:
        for number, text in enumerate(texts):
            log.write(f"3,{number},0,-;{text}\n")
        log.flush()
        found = look("log", "--only", "health", "--kernel-log", log.name)["kernel_log"]["value"]
    if found == 0 or len(texts) == 1:
        return texts if found else []
    half = len(texts) // 2
    return kernel_log(texts[:half]) + kernel_log(texts[half:])


def machine(archive):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        with tarfile.open(archive) as tar:
            tar.extractall(folder)
        look_at_machine(archive, next(pathlib.Path(folder).iterdir()))


def look_at_machine(archive, root):
    name = archive.name.removesuffix(".tar.bz2")
    targets = [re.search("target: *(.*)", test.read_text())[1] for test in archive.parent.glob("*.test")
               if re.search(f"source: *{re.escape(archive.name)}$", test.read_text(), re.M)]
    texts = [(archive.parent / target).read_text() for target in targets]
    cards = re.findall(r"class=(02\w\w|0c06)|pci_type=\"(02\w\w|0c06) ", texts[0])
    networks = re.findall(r'OSDev\[Network\].* "(.*)"$|OSDev" name="([^"]*)" osdev_type="16"', texts[0], re.M)
    rdma = re.findall(r'OSDev" name="([^"]*)" osdev_type="48"', texts[0])

    found = look(name, "--only", "devices", "--only", "health", "--only", "limits", "--sysfs", root / "sys", "--kernel-log", os.devnull)
    check(f"{name}: findings", [what for what, one in found.items() if one["ok"] is False], TRUE_FINDINGS.get(name, []))
    check(f"{name}: network cards", sum(map(int, re.findall(r"(\d+) ", str(found["pci_nics"]["value"])))), len(cards))
    shown = re.findall(r"(?:^|, )(\S+) (?!firmware)\w", str(found["nics"]["value"] or ""))
    check(f"{name}: interfaces", sorted(set(shown) - {"BIOS", "microcode"}), sorted(a or b for a, b in networks))
    check(f"{name}: RDMA ports", re.findall(r"(\w+)/1 ACTIVE", found["rdma_ports"]["value"]), rdma)

    if (root / "sys").is_dir():
        table = call(name, [BUILD / "07-rdma-tuning/rdma_tune", "table", "--sysfs", root / "sys"]).stdout
        check(f"{name}: rdma_tune", re.findall(r"^(\S+) .* hardware *$", table, re.M), rdma)
    with tempfile.NamedTemporaryFile() as answer:  # it asks the hwloc that is installed
        call(name, [BUILD / "01-environment/explore", "--json", answer.name], HWLOC_COMPONENTS="linux,stop", HWLOC_FSROOT=str(root))
        whole = re.search(r'"cpus":(\d+),"model":[^}]*"numa_nodes":(\d+)', open(answer.name).read())
    counts = [tuple(text.count(f'<object type="{kind}"') or int(re.search(rf"(\d+) {kind} \(type", text)[1]) for kind in ("PU", "NUMANode"))
              for text in texts]
    ours = tuple(map(int, whole.groups()))
    if name not in NOT_COMPARED and ours not in counts:
        check(f"{name}: CPUs and NUMA nodes", ours, counts)


def log(file):
    with open(file, newline="") as lines:
        rows = list(csv.DictReader(lines))
    texts = [row["Content"] for row in rows] + [f"{row['Component']}: {row['Content']}" for row in rows]
    check(f"{file.name}: lines, and which of them are faults", (len(rows), kernel_log(texts)), (2000, []))


def gpud(components):
    for file, (pattern, expected) in GPUD.items():
        labelled = re.findall(pattern, (components / file).read_text())
        texts = {True: set(), False: set()}
        for text, label in labelled:
            text = re.sub(r"^(\[[^\]]*\] )?((\S+ )?kernel: )?", "", text)
            texts[label in ("true", "Fatal")].add(re.sub(r"^mlx5_\w+:\d", r"mlx5_core 0000:5c:00.0: \g<0>", text))
        named, alarms = kernel_log(sorted(texts[True])), kernel_log(sorted(texts[False]))
        print(f"{file}: {len(named)} of {len(texts[True])} faults named, {len(alarms)} alarms at {len(texts[False])} other lines;"
              " not named:", *sorted(texts[True] - set(named)), sep="\n    ")
        check(file, (len(named), len(texts[True]), len(alarms), len(texts[False])), expected)
    for file in ("components/accelerator/nvidia/xid/testdata/dmesg-with-xid-119.log", "components/memory/testdata/dmesg.decode.iso.log",
                 "components/os/testdata/dmesg.decode.iso.log", "components/accelerator/nvidia/nccl/testdata/dmesg.decode.iso.log",
                 "pkg/kmsg/testdata/kmsg.1.log", "pkg/kmsg/testdata/kmsg.2.peermem.log", "pkg/pstore/testdata/7530486857247/dmesg.txt"):
        texts = [re.sub(r"^(\[[^\]]*\] |kern +:\w+ +: \S+ |\d+,\d+,\d+,-;|<\d>\[[^\]]*\] )", "", line)
                 for line in (components.parent / file).read_text().splitlines()]
        check(file, kernel_log(texts), [text for text in texts if re.match(r"NVRM: Xid \(PCI:0000:9b:00\): 119,", text)])


if __name__ == "__main__":
    for source, parts, run in (("hwloc/tests/hwloc/linux", "*.tar.bz2", machine), ("loghub", "*/*_2k.log_structured.csv", log),
                               ("gpud", "components", gpud)):
        found = sorted((SOURCES / source).glob(parts))
        print(f"{source}: {len(found)} here", flush=True)
        for part in found:
            run(part)
            ran = True
    print("\n".join(wrong) or "all as expected")
    sys.exit(1 if wrong else 0 if ran else 77)
