"""Formatters and parsers of a machine, as a document or as a short description. Drawings of machines are in views/topology."""
