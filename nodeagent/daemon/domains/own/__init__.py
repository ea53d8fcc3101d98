"""What the agent itself owns: the cgroups below the pods' unit."""
