"""Domains, one package each: owners of cgroups, with their pods and the rules for answering requests."""
