"""Host settings that contain CPUs or apply to single CPUs. This package decides which values keep host processes and interrupts off
exclusive CPUs, and which values are restored afterwards.

formats/kernel/host_files.py contains the paths and the notation of the files. edge/kernel/host_settings.py reads the files, and the
launcher writes them.
"""
