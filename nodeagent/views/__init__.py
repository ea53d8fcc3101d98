"""Output of commands: documents with stable names, and text and pictures made from these documents. Views do no I/O."""
