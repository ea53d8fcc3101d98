"""Values that everything else is about: sets of ids, quantities, the machine, pods, configuration, promises, the node's state.

They say what is; they decide nothing. A rule that chooses among CPUs, nodes or pods lives in a package above.
"""
