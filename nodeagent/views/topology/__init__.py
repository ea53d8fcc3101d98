"""Drawing of the machine as text, and its parts, which the exports as SVG and as hwloc's XML use, too."""
