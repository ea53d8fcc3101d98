"""Host settings that name CPUs: the values that keep the host off exclusive CPUs, and the values to restore.

This package contains neither the files' paths and notation (formats/kernel/host_files.py) nor the file access
(edge/kernel/host_settings.py, the launcher).
"""
