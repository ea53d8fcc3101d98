"""From promises to cgroups: what each should hold, in which order changes are written, what a failed write means.

Not here: the files' notation (formats/kernel) and the files (edge/cgroups/cgroupfs).
"""
