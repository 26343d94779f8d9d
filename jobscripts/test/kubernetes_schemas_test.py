#!/usr/bin/env python3
"""Holds jobscripts/kubernetes against the schemas of Kubernetes and of the operators, and against what a job script needs.

usage: kubernetes_schemas_test.py FOLDER. Every object must be valid, and must not be once a field that does not exist, or
a text instead of a number, is anywhere in it. MPIJob, TrainJob and RayJob are held against the operators' own CRDs, in
kubernetes-crds.tar.xz of the folder MULTINODE_FOREIGN_SOURCES, or of ../shared/sources beside this repository.
Exit status: 0 right, 1 wrong, 77 a schema is not here (ci/setup hosts installs those of Kubernetes).
"""
import copy
import functools
import json
import os
import sys
import tarfile
from pathlib import Path

try:
    import jsonschema
    import kubernetes_validate.utils
    import referencing
    import yaml
except ImportError as error:
    print(f"no schemas of Kubernetes: {error}; bash ci/setup hosts installs them")
    sys.exit(77)

ROOT = Path(__file__).resolve().parents[2]
VERSION = "1.34"
FREE = {"rayStartParams", "limits", "requests", "annotations", "labels", "selector",  # maps from any name
        "port"}  # a number or a name


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


def strict(schema):
    """A CRD's schema as the API server has it with --validate=strict: an unknown field is an error."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    defaults = {name for name, part in schema.get("properties", {}).items() if "default" in part}
    result = {key: strict(part) for key, part in schema.items()
              if key not in ("default", "properties", "x-kubernetes-validations") and not key.startswith("x-")}
    if "properties" in schema:
        result["properties"] = {name: strict(part) for name, part in schema["properties"].items()}
        if "additionalProperties" not in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
            result["additionalProperties"] = False
    if "required" in schema:
        result["required"] = [name for name in schema["required"] if name not in defaults]
    if schema.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
    return result


def crds():
    """The schemas of the operators' own CRDs, by kind; none where the archive is not here."""
    archive = Path(os.environ.get("MULTINODE_FOREIGN_SOURCES", ROOT.parent / "shared/sources")) / "kubernetes-crds.tar.xz"
    if not archive.exists():
        return {}
    found = {}
    with tarfile.open(archive) as files:
        for name in files.getnames():
            if not name.endswith(".yaml"):
                continue
            for thing in yaml.safe_load_all(files.extractfile(name)):
                if thing and thing["kind"] == "CustomResourceDefinition":
                    for version in thing["spec"]["versions"]:
                        schema = strict(version["schema"]["openAPIV3Schema"])
                        schema["properties"]["metadata"] = of_kubernetes("apimachinery.pkg.apis.meta.v1.ObjectMeta")
                        schema["properties"]["apiVersion"] = {"const": f"{thing['spec']['group']}/{version['name']}"}
                        found[thing["spec"]["names"]["kind"], version["name"]] = schema
    return found


TEXT, OBJECT, ONE = {"type": "string"}, {"type": "object"}, {"const": 1}
NUMBER, POSITIVE = ({"type": "integer", "minimum": least} for least in (0, 1))
RUN_POLICY = fields(cleanPodPolicy={"enum": ["None", "Running", "All"]}, managedBy=TEXT, schedulingPolicy=OBJECT,
                    ttlSecondsAfterFinished=NUMBER, activeDeadlineSeconds=POSITIVE, backoffLimit=NUMBER)
REPLICA = fields("template", replicas=NUMBER, template=of_kubernetes("api.core.v1.PodTemplateSpec"),
                 restartPolicy={"enum": ["Always", "OnFailure", "Never", "ExitCode"]})
FIRST_REPLICA = REPLICA | {"properties": REPLICA["properties"] | {"replicas": ONE}}
# PyTorchJob is of the old training operator. This schema is written by hand, after its types (github.com/kubeflow/trainer v1.9,
# pkg/apis/kubeflow.org/v1).
OPERATORS = {
    ("PyTorchJob", "v1"): fields(
        "apiVersion kind metadata spec", apiVersion={"const": "kubeflow.org/v1"}, kind={"const": "PyTorchJob"},
        metadata=of_kubernetes("apimachinery.pkg.apis.meta.v1.ObjectMeta"), spec=fields(
            "pytorchReplicaSpecs", nprocPerNode=TEXT | {"pattern": "^(auto|cpu|gpu|[1-9][0-9]*)$"}, elasticPolicy=OBJECT,
            runPolicy=RUN_POLICY, pytorchReplicaSpecs=fields(Master=FIRST_REPLICA, Worker=REPLICA) | {"minProperties": 1})),
} | crds()


@functools.cache
def validator(version, kind):
    schema = OPERATORS.get((kind, version.split("/")[-1])) or contents(f"{kind.lower()}-{version.replace('/', '-')}.json")
    return jsonschema.validators.Draft202012Validator(schema, registry=REGISTRY)


def fault(thing):
    """What is wrong with an object, or None."""
    try:
        validator(thing["apiVersion"], thing["kind"]).validate(thing)
    except jsonschema.ValidationError as error:
        return error.message
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
    if thing["kind"] == "Service":
        return []
    text = json.dumps(thing)
    wanted = ["activeDeadlineSeconds", "limits", "sidecar.istio.io/inject"]
    if thing["kind"] != "TrainJob":  # there the runtime has them
        wanted += ["ttlSecondsAfterFinished", "backoffLimit"]
    if thing["apiVersion"].startswith("kubeflow.org/"):
        wanted += ["cleanPodPolicy"]
    missing = [name for name in wanted if f'"{name}"' not in text]
    for pod in pods(thing):
        if not pod.get("securityContext", {}).get("runAsNonRoot"):
            missing.append("runAsNonRoot")
        if pod.get("securityContext", {}).get("seccompProfile") != {"type": "RuntimeDefault"}:
            missing.append("seccompProfile")
        for container in pod["containers"]:
            own = container.get("securityContext", {})
            if own.get("allowPrivilegeEscalation") is not False or own.get("capabilities") != {"drop": ["ALL"]}:
                missing.append("allowPrivilegeEscalation or capabilities")
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
    if thing["kind"] == "Service":
        return
    for name, what in (("activeDeadlineSeconds", "activeDeadlineSeconds"), ("runAsNonRoot", "runAsNonRoot"),
                       ("Memory", "/dev/shm in memory"), ("RuntimeDefault", "seccompProfile"),
                       ("ALL", "allowPrivilegeEscalation or capabilities"), ("sidecar.istio.io/inject",) * 2):
        if what not in lacks(json.loads(text.replace(f'"{name}"', '"other"'))):
            yield f"that it lacks {what} is not found"


def main():
    wrong = objects = 0
    unchecked = set()
    for file in sorted(Path(sys.argv[1]).glob("*.yaml")):
        for thing in yaml.safe_load_all(file.read_text()):
            objects += 1
            if thing["kind"] in ("MPIJob", "TrainJob", "RayJob") and not any(kind == thing["kind"] for kind, _ in OPERATORS):
                unchecked.add(thing["kind"])
                continue
            for said in wrongs(file, json.loads(json.dumps(thing))):  # what anchors share becomes its own
                wrong += 1
                print(f"WRONG: {file.name}: {thing['kind']}: {said}")
    print(f"{objects} objects, {wrong} wrong")
    if unchecked and not wrong:
        print(f"not checked: {' '.join(sorted(unchecked))}: their CRDs (kubernetes-crds.tar.xz) are not here; set MULTINODE_FOREIGN_SOURCES")
        sys.exit(77)
    sys.exit(wrong > 0 or objects == 0)


if __name__ == "__main__":
    main()
