"""Syntax shared by all formats: YAML and JSON as trees with line numbers, typed reading, findings, durations, hashes,
addresses.
"""
