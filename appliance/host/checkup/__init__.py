"""Looking at a machine for `doctor`: one function a look, each gives one fact of `hostfacts` or raises why not.

Nothing here changes anything. Whatever may wait for ever (the driver, a network file system, a name server) is asked in
a process of its own, which is left behind where it cannot be killed.
"""
