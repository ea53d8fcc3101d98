"""Values that all other packages use: sets of ids, quantities, the machine, pods, configuration, promises, the node's state.

These values only describe, and decide nothing. A rule that chooses among CPUs, nodes or pods belongs in a package above.
"""
