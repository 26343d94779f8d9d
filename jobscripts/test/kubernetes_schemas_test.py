#!/usr/bin/env python3
"""Holds jobscripts/kubernetes against the schemas of Kubernetes and Kubeflow, and against what a job script needs.

usage: kubernetes_schemas_test.py FOLDER. Every object must be valid, and must not be once a field that does not exist, or
a text instead of a number, is anywhere in it. Exit status: 0 right, 1 wrong, 77 the schemas are not here (ci/setup hosts).
"""
import copy
import functools
import json
import sys
from pathlib import Path

try:
    import jsonschema
    import kubernetes_validate.utils
    import referencing
    import yaml
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob
except ImportError as error:
    print(f"no schemas of Kubernetes: {error}; bash ci/setup hosts installs them")
    sys.exit(77)

VERSION = "1.34"
FREE = {"rayStartParams", "limits", "requests", "annotations", "labels", "selector"}  # maps from any name


def contents(name):
    return kubernetes_validate.utils.schema_contents(f"kubernetes-json-schema/v{VERSION}.0-local-strict/{name}", VERSION)


REGISTRY = referencing.Registry().with_resource(
    "/api/_definitions.json", referencing.jsonschema.DRAFT202012.create_resource(contents("_definitions.json"))
).crawl()


def fields(required="", **properties):
    """An object with these fields and no other."""
    return {"type": "object", "properties": properties, "required": required.split(), "additionalProperties": False}


def of_kubernetes(name):
    return {"$ref": f"/api/_definitions.json#/$defs/io.k8s.{name}"}


def operators_job(version, kind, spec):
    return fields("apiVersion kind metadata spec", apiVersion={"const": version}, kind={"const": kind}, spec=spec,
                  metadata=of_kubernetes("apimachinery.pkg.apis.meta.v1.ObjectMeta"))


TEXT, YES_OR_NO, OBJECT, ONE = {"type": "string"}, {"type": "boolean"}, {"type": "object"}, {"const": 1}
NUMBER, POSITIVE = ({"type": "integer", "minimum": least} for least in (0, 1))
ENDING = {"ttlSecondsAfterFinished": NUMBER, "activeDeadlineSeconds": POSITIVE, "backoffLimit": NUMBER, "suspend": YES_OR_NO}
TEMPLATE = of_kubernetes("api.core.v1.PodTemplateSpec")
RUN_POLICY = fields(cleanPodPolicy={"enum": ["None", "Running", "All"]}, managedBy=TEXT, schedulingPolicy=OBJECT, **ENDING)
REPLICA = fields("template", replicas=NUMBER, template=TEMPLATE,
                 restartPolicy={"enum": ["Always", "OnFailure", "Never", "ExitCode"]})
FIRST_REPLICA = REPLICA | {"properties": REPLICA["properties"] | {"replicas": ONE}}
RAY_GROUP = {"rayStartParams": OBJECT | {"additionalProperties": TEXT}, "template": TEMPLATE}
# After github.com/kubeflow/mpi-operator (v0.6, pkg/apis/kubeflow/v2beta1/types.go and manifests/base/kubeflow.org_mpijobs.yaml),
# github.com/kubeflow/trainer (v1.9, pkg/apis/kubeflow.org/v1) and github.com/ray-project/kuberay (v1.4,
# ray-operator/apis/ray/v1). Unlike there, an unknown field is an error, as the API server has it with --validate=strict.
OPERATORS = {
    "MPIJob": operators_job("kubeflow.org/v2beta1", "MPIJob", fields(
        "mpiReplicaSpecs", slotsPerWorker=POSITIVE, sshAuthMountPath=TEXT, runLauncherAsWorker=YES_OR_NO, runPolicy=RUN_POLICY,
        launcherCreationPolicy={"enum": ["AtStartup", "WaitForWorkersReady"]},
        mpiImplementation={"enum": ["OpenMPI", "Intel", "MPICH"]},
        mpiReplicaSpecs=fields("Launcher", Launcher=FIRST_REPLICA, Worker=REPLICA))),
    "PyTorchJob": operators_job("kubeflow.org/v1", "PyTorchJob", fields(
        "pytorchReplicaSpecs", nprocPerNode=TEXT | {"pattern": "^(auto|cpu|gpu|[1-9][0-9]*)$"}, elasticPolicy=OBJECT,
        runPolicy=RUN_POLICY, pytorchReplicaSpecs=fields(Master=FIRST_REPLICA, Worker=REPLICA) | {"minProperties": 1})),
    "RayJob": operators_job("ray.io/v1", "RayJob", fields(
        "entrypoint rayClusterSpec", entrypoint=TEXT, shutdownAfterJobFinishes=YES_OR_NO, runtimeEnvYAML=TEXT,
        submissionMode={"enum": ["K8sJobMode", "HTTPMode"]}, **ENDING,
        rayClusterSpec=fields(
            "headGroupSpec", rayVersion=TEXT, headGroupSpec=fields("template", serviceType=TEXT, **RAY_GROUP),
            workerGroupSpecs={"type": "array", "items": fields(
                "template groupName", groupName=TEXT, replicas=NUMBER, minReplicas=NUMBER, maxReplicas=NUMBER, **RAY_GROUP)}))),
}


@functools.cache
def validator(version, kind):
    schema = OPERATORS.get(kind) or contents(f"{kind.lower()}-{version.replace('/', '-')}.json")
    return jsonschema.validators.Draft202012Validator(schema, registry=REGISTRY)


def fault(thing):
    """What is wrong with an object, or None."""
    try:
        if thing["kind"] == "TrainJob":
            kept = TrainerV1alpha1TrainJob.from_dict(copy.deepcopy(thing)).to_dict()
            return None if kept == thing else "there are fields that a TrainJob does not have"
        validator(thing["apiVersion"], thing["kind"]).validate(thing)
    except jsonschema.ValidationError as error:
        return error.message
    except ValueError as error:  # pydantic's
        return str(error).splitlines()[0]
    return None


def places(thing, path=()):
    """The path to each mapping of fields, and to each number."""
    if isinstance(thing, dict):
        yield path
        for name, value in thing.items():
            if name not in FREE:
                yield from places(value, (*path, name))
    elif isinstance(thing, list):
        for index, value in enumerate(thing):
            yield from places(value, (*path, index))
    elif isinstance(thing, int):
        yield path


def plant(thing, path):
    changed = copy.deepcopy(thing)
    place = changed
    for part in path[:-1]:
        place = place[part]
    if path and not isinstance(place[path[-1]], dict):
        place[path[-1]] = "a text"
    else:
        (place[path[-1]] if path else place)["plantedField"] = "a"
    return changed


def pods(thing):
    """The pod specs in an object."""
    if isinstance(thing, dict):
        if "containers" in thing:
            yield thing
        for value in thing.values():
            yield from pods(value)
    elif isinstance(thing, list):
        for value in thing:
            yield from pods(value)


def lacks(thing):
    """What a job script must have beside what the schema wants."""
    text = json.dumps(thing)
    wanted = ["activeDeadlineSeconds", "limits"]
    if thing["kind"] != "TrainJob":  # there the runtime has them
        wanted += ["ttlSecondsAfterFinished", "backoffLimit"]
    if thing["apiVersion"].startswith("kubeflow.org/"):
        wanted += ["cleanPodPolicy"]
    missing = [name for name in wanted if f'"{name}"' not in text]
    for pod in pods(thing):
        if not pod.get("securityContext", {}).get("runAsNonRoot"):
            missing.append("runAsNonRoot")
        mounts = {mount["mountPath"]: mount["name"] for mount in pod["containers"][0].get("volumeMounts", [])}
        memory = [volume["name"] for volume in pod["volumes"] if volume.get("emptyDir", {}).get("medium") == "Memory"]
        if mounts.get("/dev/shm") not in memory:
            missing.append("/dev/shm in memory")
    return missing


def wrongs(file, thing):
    """What is wrong with an object of that file, and which planted faults are not found in it."""
    if said := fault(thing):
        yield said
    for path in places(thing):
        if not fault(plant(thing, path)):
            yield f"a fault is not found in {'.'.join(map(str, path)) or 'the object'}"
    if file.name == "plain.yaml":
        return
    for what in lacks(thing):
        yield f"it lacks {what}"
    text = json.dumps(thing)
    for name, what in (("activeDeadlineSeconds", "activeDeadlineSeconds"), ("runAsNonRoot", "runAsNonRoot"),
                       ("Memory", "/dev/shm in memory")):
        if what not in lacks(json.loads(text.replace(f'"{name}"', '"other"'))):
            yield f"that it lacks {what} is not found"


def main():
    wrong = objects = 0
    for file in sorted(Path(sys.argv[1]).glob("*.yaml")):
        for thing in yaml.safe_load_all(file.read_text()):
            objects += 1
            for said in wrongs(file, json.loads(json.dumps(thing))):  # what anchors share becomes its own
                wrong += 1
                print(f"WRONG: {file.name}: {thing['kind']}: {said}")
    print(f"{objects} objects, {wrong} wrong")
    sys.exit(wrong > 0 or objects == 0)


if __name__ == "__main__":
    main()
