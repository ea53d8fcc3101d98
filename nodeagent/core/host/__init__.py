"""Host settings that name CPUs: which values keep the host off exclusive CPUs, and which value each is restored to.

Not here: the files' paths and notation (formats/kernel/host_files.py), and the files (edge/kernel/host_settings.py, the launcher).
"""
