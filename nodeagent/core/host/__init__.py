"""Settings of the host that name CPUs: which to change so that nothing else uses exclusive CPUs, and how each goes back.

Not here: the files' paths and notation (formats/kernel/host_files.py), and the files (edge/kernel/host_settings.py, the launcher).
"""
