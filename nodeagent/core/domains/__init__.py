"""Domains, one package each. A domain owns certain cgroups, manages the pods in them, and answers the requests about these pods."""
