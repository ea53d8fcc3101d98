"""Drawing of the machine as text, and the parts of it that the exports as SVG and as hwloc's XML share."""
