"""Parsing and printing only: text to values and back, for every file and protocol. Pure, and decides nothing.

Text that is written for people and never read back is in views/.
"""
