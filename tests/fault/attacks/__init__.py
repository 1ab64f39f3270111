"""What a plain client can do to a process: its memory, and what others get meanwhile.

    python -m tests.fault.attacks            all of it, as the figures in benchmarks/RESULTS.md
    python -m tests.fault.attacks --only NAME --how tls

table        a row for each attack: what is done, to which process, and what must come of it
driver       starts what is attacked, lets honest clients ask meanwhile, and looks at the memory
means        connections that are held, threads that send: what attacks are made of
frames       what is sent; the attackers use sockets and nothing of the package's clients
crowds       very many honest clients at once, in a process of its own
"""
