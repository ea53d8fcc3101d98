"""Parsers and formatters of every file and protocol, which convert text or bytes to values and back. All functions are pure and make no
decisions.

Text for people, which is never read back, is formatted in views/.
"""
