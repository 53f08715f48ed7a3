"""The systemd generator: instances and drop-ins from the configuration; it never fails the boot."""
