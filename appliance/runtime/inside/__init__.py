"""Programs that run with a runtime's own Python, in a process of their own. They import nothing of this package."""
