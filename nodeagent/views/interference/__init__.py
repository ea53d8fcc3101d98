"""Output of `nodeagent interference`: the owners of exclusive CPUs, and the foreign tasks and interrupts on these CPUs."""
