"""node_check, rdma_tune and explore on machines that others recorded.

usage: foreign_test.py BUILD, the build folder

The folder in MULTINODE_FOREIGN_SOURCES, or ../shared/sources beside this repository, holds hwloc (open-mpi/hwloc, tests/hwloc/linux): /sys and
/proc of 42 machines, with what hwloc says of each.
Exit status: 0 all as expected, 1 something is not, 77 there are no sources.
"""
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
        call(name, [BUILD / "ci/image-check/node_check", "--json", answer.name, *arguments], (0, 1, 77))
        findings = [json.loads(line) for line in open(answer.name)]
    return {finding["what"]: finding for finding in findings if "what" in finding}


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
    rdma = re.findall(r'OSDev" name="([^"]*)" osdev_type="48"', texts[0])

    found = look(name, "--only", "devices", "--root", root)
    check(f"{name}: findings", [what for what, one in found.items() if one["ok"] is False], TRUE_FINDINGS.get(name, []))
    check(f"{name}: network cards", sum(map(int, re.findall(r"(\d+) ", str(found["pci_nics"]["value"])))), len(cards))
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


if __name__ == "__main__":
    found = sorted((SOURCES / "hwloc/tests/hwloc/linux").glob("*.tar.bz2"))
    print(f"{len(found)} machines", flush=True)
    for archive in found:
        machine(archive)
        ran = True
    print("\n".join(wrong) or "all as expected")
    sys.exit(1 if wrong else 0 if ran else 77)
