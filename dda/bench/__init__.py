"""The command `dda bench`: collectives timed and checked, several backends side by side.

`options` reads the command line, `cases` says what each collective moves and what must come out,
`launch` starts the ranks of each backend, whose processes run `worker` with a peer out of
`torch_peer` or `mpi_peer`; `runner` tells them what to measure, and `report` prints and writes it.
"""
