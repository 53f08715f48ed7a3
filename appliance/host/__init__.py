"""The world: systemd, the journal, /proc, files. Each call bounded, each foreign error translated."""
