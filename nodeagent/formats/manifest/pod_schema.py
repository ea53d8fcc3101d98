"""Tables of the v1 Pod's fields that are known but unused, and of the refused fields with the reasons."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from nodeagent.core.model.pod import ANNOTATION_DOMAIN

CLAIM_KINDS = CLAIM, TEMPLATE, CLASS = "ResourceClaim", "ResourceClaimTemplate", "DeviceClass"
"""Kinds of documents that a manifest may have in addition to pods."""

METADATA_SILENT = ("labels",)
"""Metadata fields that aren't logged as unused, because no node ever uses them."""

EXCLUSIVE_CPUS = f"exclusive-cpus.{ANNOTATION_DOMAIN}"
"""Annotation with the number of exclusive CPUs within the CPU request of the container in the key."""

PARTITION = f"{ANNOTATION_DOMAIN}/partition"
"""Type of the cpuset partition for the pod's exclusive CPUs, one of PARTITIONS."""

ROOT, ISOLATED = "root", "isolated"
PARTITIONS = (ROOT, ISOLATED)

NUMA_NODE = f"{ANNOTATION_DOMAIN}/numa-node"
"""Required NUMA node of the pod's exclusive CPUs and memory."""
NODE_NUMBER = re.compile(r"0|[1-9][0-9]{0,3}")

CORE_CLASS = f"{ANNOTATION_DOMAIN}/core-class"
"""Required class of cores for the pod's exclusive CPUs. Without such CPUs, the pod is refused."""
PREFERRED_CORE_CLASS = f"{ANNOTATION_DOMAIN}/preferred-core-class"
"""Preferred class of cores for the pod's exclusive CPUs."""

NEAR = f"{ANNOTATION_DOMAIN}/near"
"""Devices near which the pod's containers prefer to be placed, unless a container has its own annotation."""
NEAR_OF = f"near.{ANNOTATION_DOMAIN}"
"""Devices near which the container in the key prefers to be placed."""
NEAR_NAME = re.compile(r"(?!\.{1,2}$)[^\s/,]{1,32}")
"""Pattern of a PCI address, a device name or a kind of device."""

OF_PODS = (PARTITION, NUMA_NODE, CORE_CLASS, PREFERRED_CORE_CLASS, NEAR)
"""Annotations without a container's name in the key."""

INTERRUPTS = f"interrupts.{ANNOTATION_DOMAIN}"
"""Devices that send their interrupts to the exclusive CPUs of the container in the key."""
PCI_ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
"""Pattern of a PCI address, which is the name of a device's directory in /sys/bus/pci/devices."""
DEVICE = re.compile(rf"{PCI_ADDRESS.pattern}|(?!\.{{1,2}}$)[^\s/:,]{{1,15}}")
"""Pattern of a PCI address or of a network interface's name."""

QUIET = f"{ANNOTATION_DOMAIN}/quiet"
"""Settings of the cores of the pod's exclusive CPUs while it runs: a profile's name, settings such as `boost=false`, or `none`."""

UNIT = f"unit.{ANNOTATION_DOMAIN}"
"""Systemd unit that the container named in the key pins."""
UNIT_NAME = re.compile(
    r"(?!nodeagent[.-])(?!-\.slice$)(?!init\.scope$)(?!@)(?!.*@\.[a-z]+$)[A-Za-z0-9:_.\\@-]{1,247}\.(?:service|scope|slice)"
)
"""Pattern of the names of units that can be pinned. It excludes the root slice and init.scope, which are the host itself, and the agent's
units, which contain the pods. It also excludes templates, because systemd refuses a query that includes a template.
"""

WHILE_INACTIVE = f"{ANNOTATION_DOMAIN}/while-inactive"
"""Whether a pod of systemd units keeps its CPUs and memory while no unit is active, one of WHILE_INACTIVE_CHOICES."""
KEEP, GIVE_BACK = "keep", "give-back"
WHILE_INACTIVE_CHOICES = (KEEP, GIVE_BACK)

_METADATA_UNUSED = """
generateName selfLink resourceVersion generation creationTimestamp deletionTimestamp deletionGracePeriodSeconds
ownerReferences finalizers managedFields
"""

_SPEC_UNUSED = """
ephemeralContainers activeDeadlineSeconds dnsPolicy nodeSelector serviceAccountName serviceAccount
automountServiceAccountToken nodeName hostNetwork hostPID hostIPC shareProcessNamespace imagePullSecrets hostname
subdomain affinity schedulerName tolerations hostAliases priorityClassName priority dnsConfig readinessGates
runtimeClassName enableServiceLinks preemptionPolicy topologySpreadConstraints setHostnameAsFQDN os hostUsers
schedulingGates hostnameOverride workloadRef schedulingGroup
"""

_CONTAINER_UNUSED = """
image ports livenessProbe readinessProbe startupProbe lifecycle terminationMessagePath terminationMessagePolicy
imagePullPolicy stdin stdinOnce tty
"""

_POD_SECURITY_UNUSED = """
seLinuxOptions windowsOptions supplementalGroups supplementalGroupsPolicy fsGroup sysctls fsGroupChangePolicy
seccompProfile appArmorProfile seLinuxChangePolicy
"""

_CONTAINER_SECURITY_UNUSED = """
capabilities privileged seLinuxOptions windowsOptions readOnlyRootFilesystem allowPrivilegeEscalation procMount
seccompProfile appArmorProfile
"""

METADATA_UNUSED, SPEC_UNUSED, CONTAINER_UNUSED, POD_SECURITY_UNUSED, CONTAINER_SECURITY_UNUSED = (
    tuple(names.split())
    for names in (_METADATA_UNUSED, _SPEC_UNUSED, _CONTAINER_UNUSED, _POD_SECURITY_UNUSED, _CONTAINER_SECURITY_UNUSED)
)
"""Fields that are known but have no effect here."""
RESOURCES_UNUSED = ("ephemeral-storage",)

FOR_SCHEDULER = ("nodeSelector", "affinity", "nodeName", "topologySpreadConstraints", "schedulingGates")
"""Fields by which a scheduler chooses the node."""
_NO_SCHEDULER = "there is no scheduler; the pod runs on the node with its manifest"
_OF_THE_HOST = "processes use the host's name resolution and network"
_NO_PROBES = "a process counts as healthy and ready while it runs"
_NOT_CONFINED = "processes run on the host itself, with all rights of their user (runAsUser, runAsGroup)"

IMAGE_ALONE = "images are not run; without a command, the container is an empty cgroup that `nodeagent exec` enters"

MISLEADING: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(FOR_SCHEDULER, _NO_SCHEDULER),
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
        "activeDeadlineSeconds": "pods are never ended by a deadline",
        "ephemeralContainers": "`nodeagent exec` runs a command in a container's cgroup",
        "ephemeral-storage": "disk use is neither measured nor limited",
        "lifecycle": "hooks are not run: let the command do their work, and end on SIGTERM",
        "priorityClassName": "pods are never preempted: the pod admitted first keeps its resources",
    }
)
"""Ignored fields from which users could expect an effect, with the actual behaviour."""

SPEC_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "volumes": "volumes are not supported: processes run on the host's own file system; use host paths in command and args",
    }
)

CONTAINER_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        "envFrom": "envFrom is not supported: there are no config maps or secrets here; write the variables into env",
        "volumeMounts": "volumes are not supported: processes run on the host's own file system; use host paths in command and args",
        "volumeDevices": "volumes are not supported: processes run on the host's own file system; use host paths in command and args",
        "restartPolicyRules": "restart rules are not supported: use the pod's restartPolicy",
    }
)

ENV_REFUSED: Mapping[str, str] = MappingProxyType(
    {"valueFrom": "valueFrom is not supported: there are no config maps, secrets or pod fields here; write the value"}
)

RESOURCES_REFUSED: Mapping[str, str] = MappingProxyType(
    {"claims": "only containers have claims: state them in the containers' resources"}
)
"""Refused fields of pod-level resources."""
