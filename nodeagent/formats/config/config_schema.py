"""Tables of KubeletConfiguration's fields (kubelet.config.k8s.io/v1beta1, 1.36; systemPartition of KEP-5894 is a proposal)."""

_UNUSED = """
enableServer podLogsDir syncFrequency httpCheckFrequency staticPodURL staticPodURLHeader address port readOnlyPort
tlsCertFile tlsPrivateKeyFile tlsCipherSuites tlsCurvePreferences tlsMinVersion rotateCertificates
serverTLSBootstrap authentication authorization registryPullQPS registryBurst imagePullCredentialsVerificationPolicy
preloadedImagesVerificationAllowlist eventRecordQPS eventBurst enableDebuggingHandlers enableContentionProfiling
healthzPort healthzBindAddress oomScoreAdj clusterDomain clusterDNS streamingConnectionIdleTimeout
nodeStatusUpdateFrequency nodeStatusReportFrequency nodeLeaseDurationSeconds imageMinimumGCAge imageMaximumGCAge
imageGCHighThresholdPercent imageGCLowThresholdPercent volumeStatsAggPeriod kubeletCgroups systemCgroups
cgroupDriver singleProcessOOMKill draManagerReconcilePeriod qosReserved runtimeRequestTimeout hairpinMode podCIDR
resolvConf runOnce nodeStatusMaxImages maxOpenFiles contentType kubeAPIQPS kubeAPIBurst
serializeImagePulls maxParallelImagePulls evictionSoft evictionSoftGracePeriod evictionPressureTransitionPeriod
evictionMaxPodGracePeriod evictionMinimumReclaim enableControllerAttachDetach protectKernelDefaults
makeIPTablesUtilChains iptablesMasqueradeBit iptablesDropBit failSwapOn containerLogMaxSize containerLogMaxFiles
containerLogMaxWorkers containerLogMonitorInterval configMapAndSecretChangeDetectionStrategy
showHiddenMetricsForVersion enforceNodeAllocatable allowedUnsafeSysctls volumePluginDir providerID
kernelMemcgNotification logging enableSystemLogHandler enableSystemLogQuery shutdownGracePeriod
shutdownGracePeriodCriticalPods shutdownGracePeriodByPodPriority crashLoopBackOff enableProfilingHandler
enableDebugFlagsHandler seccompDefault memoryThrottlingFactor memoryReservationPolicy registerWithTaints
registerNode tracing localStorageCapacityIsolation containerRuntimeEndpoint imageServiceEndpoint failCgroupV1
userNamespaces systemPartition
"""
KUBELET_UNUSED = tuple(_UNUSED.split())
"""Fields of KubeletConfiguration that nodeagent accepts and ignores."""

EVICTION_SIGNALS = (
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "containerfs.available",
    "containerfs.inodesFree",
    "pid.available",
    "allocatableMemory.available",
)

RESERVABLE = ("cpu", "memory", "ephemeral-storage", "pid")
"""Resources that kubelet accepts in systemReserved and kubeReserved (cmd/kubelet, parseResourceList)."""
