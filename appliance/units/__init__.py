"""The text of systemd drop-ins, from the configuration."""
