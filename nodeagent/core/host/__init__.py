"""Host settings that contain CPUs. This package decides which values keep the host off exclusive CPUs, and which values are restored later.

The files' paths and notation are in formats/kernel/host_files.py. The launcher writes the files, and edge/kernel/host_settings.py reads
them.
"""
