"""Host settings that contain CPUs: the values that keep the host off exclusive CPUs, and the values to restore.

The files' paths and notation are in formats/kernel/host_files.py. The launcher writes the files, and edge/kernel/host_settings.py reads
them.
"""
