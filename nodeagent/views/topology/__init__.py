"""The machine drawn: as text, as SVG, and as hwloc's XML."""
