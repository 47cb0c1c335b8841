"""The demo: poolings compared on drawn letters, on this machine, without a download, in minutes.

Every picture shows one letter, its class, among three symbols. A small network is trained with each pooling and
measured on unseen letters among unseen symbols. ``lookalike demo`` prints a table and writes a page.

    pictures.py   draws the pictures
    training.py   trains one network with one pooling
    parallel.py   trains all of them, in several processes
    page.py       the page
    run.py        the command
"""
