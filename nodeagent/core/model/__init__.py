"""Values that all other packages use: sets of IDs, quantities, the machine, pods, the configuration, promises, and the node's state.

This package makes no decisions. A rule for choosing CPUs, nodes or pods belongs in another package of core.
"""
