"""The part of a file of another kind that is a configuration: kubeadm's, OpenShift's, Talos's, nodeadm's, k3s's, and flags."""

# ruff: noqa: E501 (tables: one case, one line)
import json

import pytest
from msgspec.structs import replace

from nodeagent.formats.config.config_yaml import judge_config, parse_config
from nodeagent.formats.config.kubelet_flags import FLAGS
from nodeagent.formats.config.kubelet_migration import migrate_config

WANTED = """
kind: KubeletConfiguration
cpuManagerPolicy: static
cpuManagerPolicyOptions: {full-pcpus-only: "true", distribute-cpus-across-numa: "false"}
reservedSystemCPUs: 0-1,8
topologyManagerPolicy: single-numa-node
memoryManagerPolicy: Static
kubeReserved: {cpu: 500m, memory: 1Gi}
evictionHard: {memory.available: 500Mi, nodefs.available: 10%}
reservedMemory: [{numaNode: 0, limits: {memory: 1Gi}}, {numaNode: 1, limits: {memory: 500Mi}}]
featureGates: {CPUManagerPolicyBetaOptions: true}
maxPods: 58
cpuCFSQuota: false
cpuManagerReconcilePeriod: 5s
"""
FLAG_VALUES = {
    "cpu-manager-policy": "static",
    "cpu-manager-policy-options": "full-pcpus-only=true,distribute-cpus-across-numa=false",
    "reserved-cpus": "0-1,8",
    "topology-manager-policy": "single-numa-node",
    "memory-manager-policy": "Static",
    "kube-reserved": "cpu=500m,memory=1Gi",
    "eviction-hard": "memory.available<500Mi,nodefs.available<10%",
    "reserved-memory": "0:memory=1Gi;1:memory=500Mi",
    "feature-gates": "CPUManagerPolicyBetaOptions=true",
    "max-pods": "58",
    "cpu-cfs-quota": "false",
    "cpu-manager-reconcile-period": "5s",
}
INDENT = "\n".join(f"      {line}" for line in WANTED.splitlines() if not line.startswith("kind"))
NAMED = json.dumps(FLAG_VALUES)
WORDS = [f"--{name}={value}" for name, value in FLAG_VALUES.items()]
LISTED = json.dumps([word.removeprefix("--") for word in WORDS])
QUOTED = " ".join(f"--{name}='{value}'" for name, value in FLAG_VALUES.items())
KUBEADM = """apiVersion: kubeadm.k8s.io/v1beta3
kind: ClusterConfiguration
kubernetesVersion: v1.31.0
networking: {podSubnet: 10.244.0.0/16}
"""

OPENSHIFT = (
    "{apiVersion: machineconfiguration.openshift.io/v1, kind: KubeletConfig, spec: {kubeletConfig: {maxPods: 7}}}"
)

EKS_TYPE = "Content-Type: application/node.eks.aws"
USER_DATA = f"Content-Type: multipart/mixed; boundary=b\n\n--b\n{EKS_TYPE}"
FILES = {
    "kubeadm, several documents": (
        f"{KUBEADM}---\napiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: ipvs\n---{WANTED}",
        ("uses the document KubeletConfiguration", "documents of other kinds are not used: ClusterConfiguration, KubeProxyConfiguration"),
    ),
    "kubeadm, flags by name": (
        f"{KUBEADM}---\napiVersion: kubeadm.k8s.io/v1beta3\nkind: InitConfiguration\nnodeRegistration:\n  name: n1\n  kubeletExtraArgs: {NAMED}\n",
        ("uses nodeRegistration.kubeletExtraArgs of kubeadm's node registration", "documents of other kinds are not used: ClusterConfiguration"),
    ),
    "kubeadm, a list of flags": (
        "apiVersion: kubeadm.k8s.io/v1beta4\nkind: JoinConfiguration\nnodeRegistration:\n  kubeletExtraArgs: "
        + json.dumps([{"name": name, "value": value} for name, value in FLAG_VALUES.items()]),
        ("uses nodeRegistration.kubeletExtraArgs of kubeadm's node registration",),
    ),
    "kubeadm, flags count more than fields": (
        WANTED.replace("58", "110").replace("500m", "5")
        + "---\napiVersion: kubeadm.k8s.io/v1beta3\nkind: JoinConfiguration\nnodeRegistration:\n"
        '  kubeletExtraArgs: {max-pods: "58", kube-reserved: "cpu=500m,memory=1Gi", node-ip: 10.0.0.7, v: 4}',
        ("uses the document KubeletConfiguration and nodeRegistration.kubeletExtraArgs of kubeadm's node registration",
         "flags without effect here: --node-ip, --v"),
    ),
    "OpenShift": (
        ("apiVersion: machineconfiguration.openshift.io/v1\nkind: KubeletConfig\nmetadata: {name: cpumanager-enabled}\nspec:\n"
        "  machineConfigPoolSelector:\n    matchLabels: {custom-kubelet: cpumanager-enabled}\n  kubeletConfig:\n"
        f"      apiVersion: kubelet.config.k8s.io/v1beta1\n{INDENT}\n"),
        ("uses spec.kubeletConfig of OpenShift's KubeletConfig",),
    ),
    "nodeadm": (
        ("apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\n  cluster: {name: my-cluster, cidr: 10.100.0.0/16}\n  kubelet:\n"
        f"    config:\n{INDENT.replace('58', '110')}\n    flags: [--node-labels=a=b, --max-pods=58]\n"),
        ("uses spec.kubelet.config of nodeadm's NodeConfig and spec.kubelet.flags of nodeadm's NodeConfig", "flags without effect here: --node-labels"),
    ),
    "user data of EKS": (
        ('MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary="BOUNDARY"\r\n\r\n--BOUNDARY\r\nContent-Type: application/node.eks.aws\r\n\r\n'
        "---\napiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec:\n  kubelet:\n"
        f"    config:\n{INDENT.replace('58', '110')}\n    flags: [--max-pods=58]\n\n--BOUNDARY\n"
        'Content-Type: text/x-shellscript; charset="us-ascii"\n\n#!/bin/bash\necho kubelet --max-pods=3\n--BOUNDARY--\n'),
        ("uses spec.kubelet.config of nodeadm's NodeConfig and spec.kubelet.flags of nodeadm's NodeConfig",),
    ),
    "Talos": (
        ("version: v1alpha1\ndebug: false\nmachine:\n  type: worker\n  kubelet:\n    image: ghcr.io/siderolabs/kubelet:v1.34.0\n"
        f"    extraArgs: {{rotate-server-certificates: true, feature-gates: CPUManagerPolicyBetaOptions=true}}\n    extraConfig:\n"
        f"{INDENT}\ncluster: {{clusterName: c}}\n---\napiVersion: v1alpha1\nkind: HostnameConfig\nhostname: n1\n"),
        ("uses machine.kubelet.extraConfig of the machine configuration of Talos and machine.kubelet.extraArgs of the machine configuration of Talos",
         "documents of other kinds are not used: HostnameConfig", "flags without effect here: --rotate-server-certificates"),
    ),
    "k3s": (
        f"token: secret\nnode-label: [a=b]\nkubelet-arg: {LISTED}\n",
        ("uses kubelet-arg of the configuration of k3s or RKE2",),
    ),
    "RKE2, added flags": (
        f"kubelet-arg+: {json.dumps([*WORDS, 'feature-gates+=CPUManagerPolicyBetaOptions=true'])}\n",
        ("uses kubelet-arg+ of the configuration of k3s or RKE2",),
    ),
    "kubeadm's ConfigMap": (
        f"apiVersion: v1\ndata:\n  kubelet: |{INDENT.replace(chr(10) + '      ', chr(10) + '    ')}\nkind: ConfigMap\nmetadata: {{name: kubelet-config}}\n",
        ("uses data.kubelet of kubeadm's ConfigMap",),
    ),
    "a list of OpenShift's KubeletConfig": (
        "apiVersion: v1\nkind: List\nitems:\n- apiVersion: machineconfiguration.openshift.io/v1\n  kind: KubeletConfig\n  spec:\n    kubeletConfig:" + INDENT,
        ("uses spec.kubeletConfig of OpenShift's KubeletConfig",),
    ),
    "configz": (
        '{"kubeletconfig": ' + json.dumps(
            {
                "cpuManagerPolicy": "static",
                "cpuManagerPolicyOptions": {"full-pcpus-only": "true", "distribute-cpus-across-numa": "false"},
                "reservedSystemCPUs": "0-1,8", "topologyManagerPolicy": "single-numa-node", "memoryManagerPolicy": "Static",
                "kubeReserved": {"cpu": "500m", "memory": "1Gi"},
                "evictionHard": {"memory.available": "500Mi", "nodefs.available": "10%"},
                "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}, {"numaNode": 1, "limits": {"memory": "500Mi"}}],
                "featureGates": {"CPUManagerPolicyBetaOptions": True}, "maxPods": 58, "cpuCFSQuota": False,
                "cpuManagerReconcilePeriod": "5s",
            }
        ) + "}",
        ("uses kubeletconfig of the answer of kubelet's /configz",),
    ),
    "a command line": (
        f"/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml --fail-swap-on {QUOTED}\n",
        ("uses kubelet's command line", '--config names another file, which is not read: "/var/lib/kubelet/config.yaml"', "flags without effect here: --fail-swap-on"),
    ),
    "a command line in lines": (
        "# how the node starts kubelet\nkubelet \\\n" + " \\\n".join(f"  --{name} '{value}'" for name, value in FLAG_VALUES.items() if name != "cpu-cfs-quota")
        + " \\\n  --cpu-cfs-quota=false\n",
        ("uses kubelet's command line",),
    ),
    "the words of /proc": ("\0".join(("/usr/bin/kubelet", *WORDS, "")), ("uses kubelet's command line",)),
    "a unit": (
        f'[Service]\nEnvironment="KUBELET_CONFIG_ARGS={" ".join(WORDS)}"\nExecStart=/usr/bin/kubelet $KUBELET_CONFIG_ARGS\n',
        ("uses kubelet's command line",),
    ),
    "a file of variables": (
        f'KUBELET_KUBEADM_ARGS="--container-runtime-endpoint=unix:///run/c.sock {" ".join(WORDS)}"\n',
        ("uses kubelet's command line", "flags without effect here: --container-runtime-endpoint"),
    ),
    "a unit whose variable begins with another word": (
        f'[Service]\n ; --max-pods=1\nEnvironment="KUBELET_ARGS=\\\n  -v=4 $MORE {" ".join(WORDS)}"\n',
        ("uses kubelet's command line",),
    ),
    "a comment at the end, and none in a word": (
        f"# it's ours\nkubelet --node-labels=a#b {QUOTED} # it's --max-pods=1\n",
        ("uses kubelet's command line", "flags without effect here: --node-labels"),
    ),
    "flags with underscores": (
        f"kubelet {QUOTED.replace('-manager-', '_manager_')}",
        ("uses kubelet's command line",),
    ),
    "k3s, a command line": (
        f"k3s agent --node-name n1 {QUOTED.replace('--', '--kubelet-arg ')}",
        ("uses kubelet's command line", "flags without effect here: --node-name"),
    ),
    "k3s, the words of /proc": (
        "\0".join(("k3s", "server", *(f"--kubelet-arg={word.removeprefix('--')}" for word in WORDS), "")),
        ("uses kubelet's command line",),
    ),
    "k3s, a file of variables": (
        f'INSTALL_K3S_EXEC="server {" ".join(WORDS).replace("--", "--kubelet-arg=")}"\n',
        ("uses kubelet's command line",),
    ),
    "older EKS nodes": (
        f"#!/bin/bash\n/etc/eks/bootstrap.sh my-cluster --kubelet-extra-args '{' '.join(WORDS)}'\n",
        ("uses kubelet's command line",),
    ),
    "flags that are given twice": (
        f"kubelet --max-pods 7 --reserved-memory 0:memory=1Gi {' '.join(w for w in WORDS if 'memory=1Gi;' not in w).replace('kubelet', '')}".replace("<", "\\<")
        + " --reserved-memory 1:memory=500Mi",
        ("uses kubelet's command line",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_the_part_that_is_kubelets_is_used_and_named(name: str) -> None:
    text, notes = FILES[name]
    config, wanted = parse_config(text.encode(), "f"), parse_config(WANTED.encode(), "f")
    assert config.notes == notes
    assert replace(config, notes=(), reported_fields=()) == replace(wanted, reported_fields=())


@pytest.mark.parametrize("name", FILES)
def test_migrated_it_is_a_configuration_with_the_same_effect(name: str) -> None:
    text, notes = FILES[name]
    migration = migrate_config(text.encode(), "f")
    assert migration.notes == notes
    wanted = parse_config(WANTED.encode(), "f")
    assert replace(parse_config(migration.text.encode(), "f"), reported_fields=()) == replace(
        wanted, reported_fields=()
    )


def test_of_several_documents_the_lines_and_comments_of_one_are_migrated() -> None:
    text = f"{KUBEADM}---\n# of this node\nkind: KubeletConfiguration\nmaxPods: 7 # few\n...\n---\n{KUBEADM}"
    assert migrate_config(text.encode(), "f").text == "# of this node\nkind: NodeAgentConfiguration\nmaxPods: 7 # few\n"


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ("kubelet --cpu-manager-polcy=static", "f:1: --cpu-manager-polcy: unknown flag, did you mean --cpu-manager-policy?"),
        ("\n\n # ours\nkubelet --max-pods=many", 'f:4: maxPods: "many"'),
        ("kubelet --v=2 \\\n --max-pods=many", 'f:1: maxPods: "many": must be a whole number, not a string'),
        ("A=1\nB='--max-pods=1", "f:1: can't be split into flags: No closing quotation"),
        ("kubelet-arg:\n- max-pods=1\n- reserved-cpus=x", 'f:3: reservedSystemCPUs: "x": must be CPU numbers'),
        ("kubelet-arg: 5", "f:1: kubelet-arg: must have kubelet's flags, not a number"),
        ("kubelet-arg: [[]]", "f:1: kubelet-arg: must have kubelet's flags, not a list"),
        ("machine: {kubelet: {extraConfig: []}}", "f:1: machine.kubelet.extraConfig: must be an object of kubelet's fields, not a list"),
        (f"{KUBEADM}---\n{KUBEADM}", 'f:2: kind: "ClusterConfiguration": must be KubeletConfiguration'),
        (f"kind: KubeletConfiguration\n---\n{KUBEADM}---\nkind: KubeletConfiguration\n", "f:8: a configuration must be one document"),
        ("apiVersion: v1\nkind: KubeletConfig", 'kind: "KubeletConfig"'),
        ("kind: ConfigMap\ndata:\n  kubelet: |\n    # ours\n    maxPods: many\n", 'f:5: maxPods: "many": must be a whole number'),
        (f"{USER_DATA}\n\nkind: NodeConfig\napiVersion: node.eks.aws/v1\nspec: {{kubelet: {{flags: [--max-pods=x]}}}}\n--b--\n", 'f:8: maxPods: "x": must be'),
        (f"{USER_DATA}\n\nkind: List\n--b\n{EKS_TYPE}\n\nkind: No\n--b--\n", "f:10: a configuration must be one document, but a second one starts here"),
        (f"{USER_DATA}\nContent-Transfer-Encoding: base64\n\na2luZA==\n--b--\n", "f:7: a part of type application/node.eks.aws must be plain text: decode it first"),
        (USER_DATA.replace("node", "other"), "f:1: user data must have a part of type application/node.eks.aws"),
        (USER_DATA + f"\n\n--b\n{EKS_TYPE}" * 64, "f:1: user data must have at most 64 parts"),
        *(
            (f"MIME-Version: 1.0\n{f'content-type:{end} message/rfc822{end}{end}' * 5000}", "f:1: user data must have at most 64 parts")
            for end in ("\n", "\r", "\r\n")
        ),
        (f"kind: List\nitems:\n- {OPENSHIFT}\n- {OPENSHIFT}\n", "f:4: a second spec.kubeletConfig of OpenShift's KubeletConfig: leave only the one"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_part_is_told_with_its_line(text: str, finding: str) -> None:
    assert any(str(found).startswith(finding) or finding in str(found) for found in judge_config(text.encode(), "f")[1])


NODE_CONFIG = "apiVersion: node.eks.aws/v1alpha1\nkind: NodeConfig\nspec: {cluster: {name: x}}"
OF_OPENSHIFT = "apiVersion: machineconfiguration.openshift.io/v1\nkind: KubeletConfig\nspec: {autoSizingReserved: true}"
TALOS = "version: v1alpha1\nmachine: {kubelet: {image: x}}"
OF_KUBEADM = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nnodeRegistration: {name: x}"


@pytest.mark.parametrize(
    ("text", "lacks", "added"),
    [
        (NODE_CONFIG, "nodeadm's NodeConfig has no spec.kubelet.config and no spec.kubelet.flags", ("{cluster", "{kubelet: {config: FIELDS}, cluster")),
        (OF_OPENSHIFT, "OpenShift's KubeletConfig has no spec.kubeletConfig", ("{auto", "{kubeletConfig: FIELDS, auto")),
        (TALOS, "the machine configuration of Talos has no machine.kubelet.extraConfig and no machine.kubelet.extraArgs", ("{image", "{extraConfig: FIELDS, image")),
        (OF_KUBEADM, "kubeadm's node registration has no nodeRegistration.kubeletExtraArgs", ("{name", "{kubeletExtraArgs: {max-pods: '7'}, name")),
        (f"{OF_KUBEADM}\n---\nkind: ClusterConfiguration", "kubeadm's node registration has no nodeRegistration.kubeletExtraArgs", ("{name", "{kubeletExtraArgs: {max-pods: '7'}, name")),
        ("kind: ConfigMap\ndata: {other: x}", "kubeadm's ConfigMap has no data.kubelet", ("{other", "{kubelet: 'maxPods: 7', other")),
    ],
)  # fmt: skip
def test_a_file_of_a_known_kind_without_kubelets_part_is_told_so(text: str, lacks: str, added: tuple[str, str]) -> None:
    (found,) = judge_config(text.encode(), "f")[1]
    assert str(found).startswith(
        f"f:1: {lacks} here, so kubelet's defaults hold on its nodes: write kubelet's fields there, or "
    )
    before, after = added
    assert parse_config(text.replace(before, after.replace("FIELDS", "{maxPods: 7}")).encode(), "f").max_pods == 7
    assert "/configz" in str(found)
    assert parse_config(b'{"kubeletconfig": {"maxPods": 7}}', "f").max_pods == 7, "what the node answers is read, too"


def test_the_config_of_an_eks_node_is_one_as_it_is() -> None:
    text = json.dumps(
        {
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "address": "0.0.0.0",
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"cacheTTL": "2m0s", "enabled": True}},
            "authorization": {"mode": "Webhook", "webhook": {"cacheAuthorizedTTL": "5m0s"}},
            "clusterDomain": "cluster.local",
            "hairpinMode": "hairpin-veth",
            "readOnlyPort": 0,
            "cgroupDriver": "systemd",
            "cgroupRoot": "/",
            "featureGates": {"RotateKubeletServerCertificate": True, "KubeletCredentialProviders": True},
            "protectKernelDefaults": True,
            "serializeImagePulls": False,
            "serverTLSBootstrap": True,
            "tlsCipherSuites": ["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"],
            "clusterDNS": ["172.20.0.10"],
            "evictionHard": {"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%"},
            "kubeReserved": {"cpu": "70m", "ephemeral-storage": "1Gi", "memory": "442Mi"},
            "systemReservedCgroup": "/system",
            "kubeReservedCgroup": "/runtime",
            "maxPods": 29,
        }
    )
    config = parse_config(text.encode(), "f")
    assert config.notes == ()
    assert config.max_pods == 29


def test_every_flag_makes_a_field_that_is_known() -> None:
    values = {**dict.fromkeys(FLAGS, "1"), "cgroups-per-qos": "true", "cpu-cfs-quota": "true"}
    for flag, value in values.items():
        findings = judge_config(f"kubelet --{flag}={value}".encode(), "f")[1]
        assert not [finding for finding in findings if "unknown field" in str(finding)], flag


def test_a_comment_before_the_fields_is_kept_however_it_is_indented() -> None:
    assert (
        migrate_config(b"  # of this node\nmaxPods: 7\n", "f").text
        == "  # of this node\nkind: NodeAgentConfiguration\nmaxPods: 7\n"
    )
