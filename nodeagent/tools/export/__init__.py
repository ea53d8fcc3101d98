"""The machine in the formats of other programs: SVG, hwloc XML, NodeResourceTopology, ResourceSlice."""
