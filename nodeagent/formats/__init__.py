"""Parsers and formatters of every file and protocol: they turn text or bytes into values and back. All functions are pure, and none of them
makes decisions.

Text for people, which is never read back, is formatted in views/.
"""
