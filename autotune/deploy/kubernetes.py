"""`k8s.yaml`: the measured container as a Deployment with a ClusterIP Service."""

from __future__ import annotations

from collections.abc import Iterable

from autotune.deploy.facts import DeployFacts
from autotune.deploy.quoting import kubernetes_name, yaml_string
from autotune.deploy.sentences import commented, header, one_line
from autotune.deploy.timing import (
    PRE_STOP_S,
    grace_explained,
    grace_s,
    startup_explained,
    startup_limit_s,
)
from autotune.deploy.words import container_argv, pinned_image, plain_environment, secrets_of
from autotune.engines.plan import CONTAINER_PORT, LaunchPlan, Mount

_PROBE_PERIOD_S = 5
_MEMORY_HEADROOM = 1.25


def render(plan: LaunchPlan, facts: DeployFacts) -> str:
    """Manifests for `kubectl apply`; the cluster's own storage and Secret are named, not made.

    Raises InputError for a process plan.
    """
    image = pinned_image(plan, facts)
    name = f"autotune-{kubernetes_name(facts.study)}"
    label = f"app.kubernetes.io/name: {name}"
    study = yaml_string(one_line(f"{facts.study}, trial {facts.trial}"))
    differs = "the server listens on the pod's address; reached through the Service only"
    pod = [
        "enableServiceLinks: false  # a Service named vllm would set VLLM_PORT=tcp://...",
        (
            f"terminationGracePeriodSeconds: {grace_s(facts, PRE_STOP_S)}"
            f"  # preStop {PRE_STOP_S} s + {grace_explained(facts)}"
        ),
        "containers:",
        *_indented(_container(plan, facts, image, name), 2),
        "volumes:",
        *_indented(_volumes(plan), 2),
    ]
    lines = [
        "apiVersion: apps/v1",
        "kind: Deployment",
        "metadata:",
        f"  name: {name}",
        f"  labels: {{{label}, app.kubernetes.io/managed-by: autotune}}",
        f"  annotations: {{autotune/study: {study}}}",
        "spec:",
        "  replicas: 1",
        "  strategy: {type: Recreate}  # a rolling update would wait for a second GPU for ever",
        f"  selector: {{matchLabels: {{{label}}}}}",
        "  template:",
        f"    metadata: {{labels: {{{label}}}}}",
        "    spec:",
        *_indented(pod, 6),
        "---",
        "apiVersion: v1",
        "kind: Service",
        f"metadata: {{name: {name}, labels: {{{label}}}}}",
        "spec:",
        "  type: ClusterIP",
        f"  selector: {{{label}}}",
        f"  ports: [{{name: http, port: {CONTAINER_PORT}, targetPort: http}}]",
    ]
    text = commented(header(plan, facts, differs)) + "\n"
    return text + "".join(f"{line}\n" for line in lines) + _stubs(plan, name)


def _container(plan: LaunchPlan, facts: DeployFacts, image: str, name: str) -> list[str]:
    argv = container_argv(plan)
    health = f"httpGet: {{path: {plan.health}, port: http}}"
    failures = -(-startup_limit_s(facts) // _PROBE_PERIOD_S)
    body = [
        f"image: {yaml_string(image)}  # measured as {one_line(plan.image or '')}",
        f"command: [{_text(argv[0])}]",
        "args:",
        *(f"  - {_text(word)}" for word in argv[1:]),
        *_environment(plan, name),
        f"ports: [{{name: http, containerPort: {CONTAINER_PORT}}}]",
        f"# The start may take {startup_explained(facts)}.",
        (
            f"startupProbe: {{{health}, periodSeconds: {_PROBE_PERIOD_S}, "
            f"failureThreshold: {failures}, timeoutSeconds: 5}}"
        ),
        f"readinessProbe: {{{health}, periodSeconds: 5, failureThreshold: 1, timeoutSeconds: 5}}",
        "# A restart loads the model again: six failures in a row, not one.",
        f"livenessProbe: {{{health}, periodSeconds: 10, failureThreshold: 6, timeoutSeconds: 5}}",
        f"lifecycle: {{preStop: {{sleep: {{seconds: {PRE_STOP_S}}}}}}}  # Kubernetes >= 1.30",
        "securityContext: {allowPrivilegeEscalation: false}",
        *_resources(plan, facts),
        "volumeMounts:",
        "  - {name: shm, mountPath: /dev/shm}",
        *(
            f"  - {{name: data-{i}, mountPath: {_text(m.target)}, "
            f"readOnly: {str(m.read_only).lower()}}}"
            for i, m in enumerate(plan.mounts)
        ),
    ]
    return ["- name: engine", *_indented(body, 2)]


def _environment(plan: LaunchPlan, name: str) -> list[str]:
    lines = [
        f"  - {{name: {_text(k)}, value: {_text(v)}}}" for k, v in plain_environment(plan).items()
    ]
    lines += [
        f"  - {{name: {_text(target)}, valueFrom: "
        f"{{secretKeyRef: {{name: {name}, key: {_text(source)}}}}}}}"
        for target, source in secrets_of(plan).items()
    ]
    return ["env:", *lines] if lines else []


def _resources(plan: LaunchPlan, facts: DeployFacts) -> list[str]:
    wanted, comment = [], ""
    if plan.gpus != ():
        wanted.append(f'nvidia.com/gpu: "{len(plan.gpus) if plan.gpus else 1}"')
    if facts.host_memory_peak_bytes is not None:
        gib = facts.host_memory_peak_bytes / 2**30
        wanted.append(f"memory: {-(-int(gib * _MEMORY_HEADROOM * 1024) // 1024)}Gi")
        comment = f"  # measured host peak {gib:.1f} GiB x {_MEMORY_HEADROOM}"
    if not wanted:
        return []
    both = ", ".join(wanted)
    return ["resources:", f"  limits: {{{both}}}{comment}", f"  requests: {{{both}}}"]


def _volumes(plan: LaunchPlan) -> list[str]:
    size = f", sizeLimit: {_quantity(plan.shm_size)}" if plan.shm_size else ""
    lines = [f"- {{name: shm, emptyDir: {{medium: Memory{size}}}}}"]
    return lines + [f"- {_volume(i, mount)}" for i, mount in enumerate(plan.mounts)]


def _volume(index: int, mount: Mount) -> str:
    if mount.source.startswith("/"):
        return f"{{name: data-{index}, hostPath: {{path: {yaml_string(mount.source)}}}}}"
    claim = kubernetes_name(mount.source)
    return f"{{name: data-{index}, persistentVolumeClaim: {{claimName: {claim}}}}}"


def _quantity(size: str) -> str:
    """Docker's `16g` as Kubernetes' `16Gi`."""
    number = size.strip().lower().rstrip("b")
    return f"{number[:-1]}{number[-1].upper()}i" if number[-1:] in set("kmgt") else number


def _stubs(plan: LaunchPlan, name: str) -> str:
    text = ""
    if secrets := secrets_of(plan):
        keys = " ".join(f"--from-literal={source}=..." for source in secrets.values())
        text += f"# The Secret: kubectl create secret generic {name} {keys}\n"
    for mount in plan.mounts:
        if not mount.source.startswith("/"):
            claim = kubernetes_name(mount.source)
            text += f"# The PersistentVolumeClaim `{claim}` (for {mount.target}) must exist.\n"
    return text


def _text(text: str) -> str:
    """A string that Kubernetes takes literally: `$(` would be a reference."""
    return yaml_string(text.replace("$(", "$$("))


def _indented(lines: Iterable[str], by: int) -> list[str]:
    return [" " * by + line for line in lines]
