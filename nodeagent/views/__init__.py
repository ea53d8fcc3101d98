"""Output of commands: documents with stable field names, and text and pictures made from them.

Views do no I/O. The documents are for programs, and the text is only for people.
"""
