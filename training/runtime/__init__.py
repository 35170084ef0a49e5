"""The runtime: processes, compilation, devices and failures."""
