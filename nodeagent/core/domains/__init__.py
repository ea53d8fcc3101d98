"""Owners of cgroups, one package each, with the pods that each of them describes and the rules for the answers to it."""
