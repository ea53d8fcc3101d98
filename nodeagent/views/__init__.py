"""Output of commands: documents with stable names, and text and pictures made from them. No I/O, and no code reads the output back."""
