"""Validates what the programs write with --json against the JSON Schema in reference.md.

usage: schema_test.py reference.md FOLDER-OF-THE-PROGRAMS [gloo]
Exit status: 0 right, 1 wrong, 77 no jsonschema 4 (Debian: python3-jsonschema).
"""
import copy
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

try:
    from jsonschema import Draft202012Validator
except ImportError:
    print("no jsonschema of version 4 or newer: install python3-jsonschema")
    sys.exit(77)

reference, programs = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
schemas = re.findall(r"^```json\n(.*?)^```$", reference.read_text(), re.S | re.M)
assert len(schemas) == 1, f"{len(schemas)} json blocks in reference.md"
schema = json.loads(schemas[0])
Draft202012Validator.check_schema(schema)
validator = Draft202012Validator(schema)
environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                            "OMPI_MCA_rmaps_base_oversubscribe": "1",
                            "PRTE_MCA_rmaps_default_mapping_policy": "slot:oversubscribe"}
mpirun = os.environ.get("MPIEXEC", "mpirun")
independent = ["collective", "backend", "ranks", "size_bytes", "type", "redop", "in_place", "cycle"]


def lines_of(ranks, program, *options):
    """The objects that a program writes, whose exit status must be 0."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "json"
        command = [str(programs / program), *options, "--json", str(file)]
        if ranks > 1:
            command = [mpirun, "-n", str(ranks), *command]
        done = subprocess.run(command, env=environment, timeout=300, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        assert done.returncode == 0, f"{command}: exit status {done.returncode}\n{done.stdout}"
        return [json.loads(line) for line in file.read_text().splitlines()]


mpi = shutil.which(mpirun) and (programs / "all_reduce_perf").exists()
runs = [(1, "all_reduce_perf", "-b", "8", "-e", "8")]  # one rank: n/a is null
if mpi:
    runs += [
        (2, "all_reduce_perf", "-b", "8", "-e", "64", "-f", "8", "-d", "all", "-n", "2"),
        (3, "sendrecv_perf", "-b", "8", "-e", "8", "-N", "2", "-c", "0"),
    ]
if mpi and "gloo" in sys.argv[3:]:
    runs.append((2, "all_gather_perf", "-b", "1000", "-e", "1000", "--backend", "gloo", "-g", "2"))
wrong = validated = 0
for run in runs:
    objects = lines_of(*run)
    kinds = ["fingerprint" if "fingerprint" in one else "result" for one in objects]
    assert kinds[0] == "fingerprint" and set(kinds[1:]) == {"result"}, f"{run}: {kinds}"
    tuples = [tuple(one[name] for name in independent) for one in objects[1:]]
    assert len(set(tuples)) == len(tuples), f"{run}: two rows of one tuple"
    for one in objects:
        validated += 1
        for error in validator.iter_errors(one):
            wrong += 1
            print(f"WRONG: {run}: {error.message} in {json.dumps(one)}")
    # Planted faults: each field once left out, renamed and of another type.
    for one in objects[:2]:
        fields = one["fingerprint"] if "fingerprint" in one else one
        for name in fields:
            for fault in ("left out", "renamed", "of another type"):
                damaged = copy.deepcopy(one)
                inner = damaged["fingerprint"] if "fingerprint" in one else damaged
                value = inner.pop(name)
                if fault == "renamed":
                    inner[name + "_"] = value
                elif fault == "of another type":
                    inner[name] = {"value": value} if name != "versions" else []
                if validator.is_valid(damaged):
                    wrong += 1
                    print(f"WRONG: {name} {fault} is not noticed")
print(f"{validated} lines of {len(runs)} runs validated, {wrong} wrong")
sys.exit(1 if wrong else 0)
