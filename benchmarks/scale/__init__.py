"""How cost grows: what docs/scale.md shows.

    curves       what a curve is: its points as figures, how it bends, what lies beyond
    table        all curves
    measuring    measures them; what an interrupted run has measured is kept for the next one
    page         writes the measured part of docs/scale.md
    drawing      draws a curve

One module measures one curve:

    messages     messages in a store
    queues       queues of a store
    topics       topics of a store
    sources      stores in one query
    connections  clients that are connected, and clients that send
    followers    followers of a master
    segments     segments of a log

They share:

    opened       what a store that is closed costs its users
    written      stores that are written to, and killed
    lookups      what it takes to find one message

`python -m benchmarks --only scale` measures all of them, `python -m benchmarks.scale NAME` some.
"""
