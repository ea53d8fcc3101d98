"""Output of `apply`, `diff` and `delete`: the effect of each manifest, and the CPUs and NUMA nodes that its pod gets."""
