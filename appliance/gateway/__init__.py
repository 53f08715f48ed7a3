"""The HTTP process in front of the engines."""
