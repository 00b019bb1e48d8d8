"""What `tools/bench` runs.

    workload    the events that everybody records, from a seed
    contender   what a log must offer to be measured
    floor       SQLite through apsw: the same rows, nothing sealed, nothing chained
    convlog     convlog, with and without its mirror
    figures     samples, and what is made of them
    comparing   rounds over all contenders in turn
    alone       what only convlog does: filters, verify, the mirror's lag, starting up
    views       tails through views, and listening
    states      projections: folding, snapshots, keeping one up to date
    together    several threads, tasks and processes beside one
    peers       other packages, for --peers: what they are called and how they are used
    exporter    the other process of the mirror's lag
    appender    one of the processes that append at once
    machine     where it was measured
    report      the table and the file
    command     the options

A contender more is a class like `Floor` and its name in `command.CONTENDERS`.
"""
