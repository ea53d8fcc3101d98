"""Values that all other packages use: sets of ids, quantities, the machine, pods, configuration, promises, the node's state.

These values make no decisions. A rule that chooses among CPUs, nodes or pods belongs in another package of core.
"""
