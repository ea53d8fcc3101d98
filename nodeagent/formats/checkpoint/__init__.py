"""State files: nodeagent_state, and every version of kubelet's cpu_manager_state and memory_manager_state."""
