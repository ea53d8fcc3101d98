"""Formatters of the machine for other programs: SVG, hwloc XML, NodeResourceTopology, ResourceSlice."""
