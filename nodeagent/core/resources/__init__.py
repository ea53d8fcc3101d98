"""Resources that pods can be given, one package each: CPUs, memory, devices, claims. None knows another."""
