"""Parsers and formatters of every file and protocol. They convert text or bytes to values and back. All functions are pure, and none of
them makes decisions.

Text for people, which is never read back, is formatted in views/.
"""
