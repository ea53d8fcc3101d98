"""Domains, one package each. A domain is an owner of cgroups, with its pods and its rules for answering requests."""
