"""Parsing and formatting of every file and protocol: text or bytes to values and back. Pure functions without
decisions.

Text for people, which is never read back, is formatted in views/.
"""
