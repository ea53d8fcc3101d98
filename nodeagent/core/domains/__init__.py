"""Owners of cgroups, one package each: what the owner states of its pods, and the rules for its answers."""
