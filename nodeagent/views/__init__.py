"""Output of commands: documents with stable field names, and text and pictures made from them.

Views do no I/O, and no code parses the output.
"""
