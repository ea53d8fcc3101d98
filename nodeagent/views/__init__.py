"""Output of commands: documents with stable field names, and text and pictures made from them.

Views do no I/O. Programs read the documents; nothing parses the text.
"""
