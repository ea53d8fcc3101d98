"""Values that all other packages use: sets of ids, quantities, the machine, pods, configuration, promises, the node's state.

This package makes no decisions. A rule for choosing CPUs, nodes or pods belongs in another package of core.
"""
