"""Names of the v1 Pod's fields that are known but unused, and of those that are refused, with the reason. Only tables."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from nodeagent.core.model.pod import ANNOTATION_DOMAIN

CLAIM_KINDS = CLAIM, TEMPLATE, CLASS = "ResourceClaim", "ResourceClaimTemplate", "DeviceClass"
"""Documents that stand beside pods in a manifest."""

METADATA_SILENT = ("labels",)
"""Without effect on a node anyway: not worth a log line."""

EXCLUSIVE_CPUS = f"exclusive-cpus.{ANNOTATION_DOMAIN}"
"""Of the CPU request of the container that the key names, so many CPUs are exclusive."""

PARTITION = f"{ANNOTATION_DOMAIN}/partition"
"""The kind of partition that the pod's exclusive CPUs become: one of these."""

ROOT, ISOLATED = "root", "isolated"
PARTITIONS = (ROOT, ISOLATED)

NUMA_NODE = f"{ANNOTATION_DOMAIN}/numa-node"
"""The pod's exclusive CPUs and its memory are on this NUMA node."""
NODE_NUMBER = re.compile(r"0|[1-9][0-9]{0,3}")

CORE_CLASS = f"{ANNOTATION_DOMAIN}/core-class"
"""The pod's exclusive CPUs are of this class of cores, or it is refused."""
PREFERRED_CORE_CLASS = f"{ANNOTATION_DOMAIN}/preferred-core-class"
"""They are of this class if that is possible."""

NEAR = f"{ANNOTATION_DOMAIN}/near"
"""All containers of the pod ask to be near these devices, but those that say otherwise by an annotation of their own."""
NEAR_OF = f"near.{ANNOTATION_DOMAIN}"
"""The container that the key names asks to be near these devices."""
NEAR_NAME = re.compile(r"(?!\.{1,2}$)[^\s/,]{1,32}")
"""An address of a PCI device, a name of one, or a kind."""

OF_PODS = (PARTITION, NUMA_NODE, CORE_CLASS, PREFERRED_CORE_CLASS, NEAR)
"""Annotations that name no container."""

INTERRUPTS = f"interrupts.{ANNOTATION_DOMAIN}"
"""The interrupts of these devices come to the exclusive CPUs of the container that the key names."""
PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
"""Of a device, the name of its directory below /sys/bus/pci/devices."""
DEVICE = re.compile(rf"{PCI_ADDRESS.pattern}|(?!\.{{1,2}}$)[^\s/:,]{{1,15}}")
"""Such an address, or the name of a network interface."""

UNIT = f"unit.{ANNOTATION_DOMAIN}"
"""The systemd unit that the container stands for which the key names."""
UNIT_NAME = re.compile(
    r"(?!nodeagent[.-])(?!-\.slice$)(?!init\.scope$)(?!@)(?!.*@\.[a-z]+$)[A-Za-z0-9:_.\\@-]{1,247}\.(?:service|scope|slice)"
)
"""The root of all slices and PID 1 are the host itself, and the agent's own units hold the pods. A template is no unit: systemd refuses a
question about several, if one is a template.
"""

WHILE_INACTIVE = f"{ANNOTATION_DOMAIN}/while-inactive"
"""What becomes of the CPUs and memory of a pod whose containers stand for systemd units while none of these is active: one of these."""
KEEP, GIVE_BACK = "keep", "give-back"
WHILE_INACTIVE_CHOICES = (KEEP, GIVE_BACK)

METADATA_UNUSED = (
    "generateName",
    "selfLink",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "ownerReferences",
    "finalizers",
    "managedFields",
)

SPEC_UNUSED = (
    "ephemeralContainers",
    "activeDeadlineSeconds",
    "dnsPolicy",
    "nodeSelector",
    "serviceAccountName",
    "serviceAccount",
    "automountServiceAccountToken",
    "nodeName",
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "shareProcessNamespace",
    "imagePullSecrets",
    "hostname",
    "subdomain",
    "affinity",
    "schedulerName",
    "tolerations",
    "hostAliases",
    "priorityClassName",
    "priority",
    "dnsConfig",
    "readinessGates",
    "runtimeClassName",
    "enableServiceLinks",
    "preemptionPolicy",
    "topologySpreadConstraints",
    "setHostnameAsFQDN",
    "os",
    "hostUsers",
    "schedulingGates",
    "hostnameOverride",
    "workloadRef",
    "schedulingGroup",
)

CONTAINER_UNUSED = (
    "image",
    "ports",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "imagePullPolicy",
    "stdin",
    "stdinOnce",
    "tty",
)

POD_SECURITY_UNUSED = (
    "seLinuxOptions",
    "windowsOptions",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "fsGroup",
    "sysctls",
    "fsGroupChangePolicy",
    "seccompProfile",
    "appArmorProfile",
    "seLinuxChangePolicy",
)

CONTAINER_SECURITY_UNUSED = (
    "capabilities",
    "privileged",
    "seLinuxOptions",
    "windowsOptions",
    "readOnlyRootFilesystem",
    "allowPrivilegeEscalation",
    "procMount",
    "seccompProfile",
    "appArmorProfile",
)

RESOURCES_UNUSED = ("ephemeral-storage",)

_NO_SCHEDULER = "there is no scheduler: the pod runs on the node that has its manifest"
_OF_THE_HOST = "processes have the host's names and its network"
_NO_PROBES = "a process is healthy and ready for as long as it runs"
_NOT_CONFINED = "processes run on the host itself, with all rights of their user (runAsUser, runAsGroup)"

IMAGE_ALONE = "no image is run; without a command the container is an empty cgroup to enter with `nodeagent exec`"

MISLEADING: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            ("nodeSelector", "affinity", "nodeName", "topologySpreadConstraints", "schedulingGates"), _NO_SCHEDULER
        ),
        **dict.fromkeys(("hostname", "subdomain", "hostAliases", "dnsConfig", "hostnameOverride"), _OF_THE_HOST),
        **dict.fromkeys(("livenessProbe", "readinessProbe", "startupProbe"), _NO_PROBES),
        **dict.fromkeys(
            (
                "runtimeClassName",
                "hostUsers",
                "seLinuxOptions",
                "supplementalGroups",
                "sysctls",
                "seccompProfile",
                "appArmorProfile",
                "capabilities",
                "readOnlyRootFilesystem",
                "allowPrivilegeEscalation",
            ),
            _NOT_CONFINED,
        ),
        "activeDeadlineSeconds": "nothing ends a pod after a time",
        "ephemeralContainers": "`nodeagent exec` runs a command in a container's cgroup",
        "ephemeral-storage": "nothing counts or bounds what processes write",
        "lifecycle": "hooks are not run: let the command do it, and end on SIGTERM",
        "priorityClassName": "no pod is preempted: the first one decided keeps what it asked for",
    }
)
"""Unused fields that promise something, by name, and what happens instead."""

SPEC_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "volumes": "volumes are not supported: processes run on the host's own file system, use host paths in command and args",
    }
)

CONTAINER_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "envFrom": "envFrom is not supported: there are no config maps or secrets here, write the variables into env",
        "volumeMounts": "volumes are not supported: processes run on the host's own file system, use host paths in command and args",
        "volumeDevices": "volumes are not supported: processes run on the host's own file system, use host paths in command and args",
        "restartPolicyRules": "restart rules are not supported: use the pod's restartPolicy",
    }
)

ENV_REFUSED: Mapping[str, str] = MappingProxyType(
    {"valueFrom": "valueFrom is not supported: there are no config maps, secrets or pod fields here, write the value"}
)

RESOURCES_REFUSED: Mapping[str, str] = MappingProxyType(
    {"claims": "claims are containers': state them in their resources"}
)
"""Of a pod as a whole."""
