"""Drawings of the machine: text, SVG, and hwloc's XML."""
