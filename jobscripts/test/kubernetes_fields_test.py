#!/usr/bin/env python3
"""Is each field in the manifests of a folder one that Kubernetes knows, with a value of its type, and are the pods' rights few?

usage: kubernetes_fields_test.py FOLDER. Kubernetes' own schema checks its objects and the pods of the operators' objects.
The operators' other fields must be in FIELDS. Exit status: 0 yes, 1 no, 77 the schema is not here (ci/setup slurm).
"""
import sys
from pathlib import Path

try:
    import kubernetes_validate
    import yaml
except ImportError as error:
    print(f"no schema of Kubernetes: {error}; bash ci/setup slurm installs it")
    sys.exit(77)

# Of MPIJob, TrainJob and RayJob.
FIELDS = set("""apiVersion kind metadata name annotations spec template replicas restartPolicy runPolicy cleanPodPolicy
    backoffLimit activeDeadlineSeconds ttlSecondsAfterFinished launcherCreationPolicy slotsPerWorker sshAuthMountPath
    mpiReplicaSpecs Launcher Worker runtimeRef trainer numNodes numProcPerNode
    resourcesPerNode limits image env value command args runtimePatches manager trainingRuntimeSpec replicatedJobs
    entrypoint shutdownAfterJobFinishes rayClusterSpec authOptions mode headGroupSpec workerGroupSpecs groupName
    rayStartParams submitterPodTemplate""".split())
NAMES = {"annotations", "limits", "rayStartParams"}  # their fields are names of any kind

POD = {"securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}}
NO_TOKEN = {"automountServiceAccountToken": False}
CONTAINER = {"securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}}


def demand(thing, wanted, path=""):
    """Raises an error that names the first field of `wanted` which `thing` has not, or with another value."""
    for name, value in wanted.items():
        if isinstance(value, dict):
            demand(thing.get(name, {}), value, f"{path}{name}.")
        elif thing.get(name) != value:
            raise ValueError(f"{path}{name} is not {value}")


def check(thing):
    """Raises an error that names what is wrong."""
    if isinstance(thing, list):
        for part in thing:
            check(part)
    elif isinstance(thing, dict) and "containers" in thing:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": thing}
        kubernetes_validate.validate(pod, "1.34", strict=True)
        # A pod of a TrainJob can only name an account, which must be in the same file.
        demand(thing, POD | ({} if "serviceAccountName" in thing else NO_TOKEN))
        for container in thing["containers"]:
            demand(container, CONTAINER)
    elif isinstance(thing, dict) and thing.get("apiVersion") in ("v1", "batch/v1"):
        kubernetes_validate.validate(thing, "1.34", strict=True)
        if thing["kind"] == "ServiceAccount":
            demand(thing, NO_TOKEN)
        elif thing["kind"] == "Job":
            check(thing["spec"]["template"]["spec"])
    elif isinstance(thing, dict):
        if thing.get("kind") == "RayJob" and "submitterPodTemplate" not in thing["spec"]:
            raise ValueError("spec.submitterPodTemplate is missing: the operator's own has more rights")
        for name, value in thing.items():
            if name not in FIELDS:
                raise ValueError(f"no operator's object has the field {name}")
            if name not in NAMES:
                check(value)


def fault(text):
    try:
        check(list(yaml.safe_load_all(text)))
    except Exception as error:
        return str(error).splitlines()[0]


wrong = []
for file in Path(sys.argv[1]).glob("*.yaml"):
    manifest = file.read_text()
    wrong += [f"{file.name}: {said}" for said in [fault(manifest)] if said]
    for right, planted in (("backoffLimit", "backofLimit"), ("volumeMounts", "volumeMount"), ("name: main", "title: main"),
                           ("completions: 2", "completions: two"), ("runAsUser: 1000", "runAsUser: root"),
                           ("Token: false", "Token: true"), ("runAsNonRoot: true", "runAsNonRoot: false"), ("RuntimeDefault", "Unconfined"),
                           ("Escalation: false", "Escalation: true"), ("drop: [ALL]", "add: [ALL]"), ("submitterPod", "submitPod")):
        if right in manifest and not fault(manifest.replace(right, planted)):
            wrong.append(f"{file.name}: '{planted}' is not found")
print("\n".join(wrong) or "RIGHT: every field is known")
sys.exit(bool(wrong))
