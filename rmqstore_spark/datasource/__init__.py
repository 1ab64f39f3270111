"""The Spark data source: `format("rmqstore")`, batch and streaming.

    source       the class that Spark calls first; lets the processes of an application know what
                 the others have reached
    spark_api    makes up for what older versions of Spark lack
    options/     parses and checks options
    tables       carries a catalog table's options to its queries
    schema       defines the columns, and checks a user's choice of them
    sources/     finds, opens and reads what a query names: the rest knows only a `Source`
    resolve      turns starting and ending positions into offsets
    batch        plans a batch query
    stream/      follows the stores of a stream; `offsets` defines its checkpointed offsets
    partitions   cuts plans into partitions, and reads one in a task
    tasks        gets a task's input at once, reads one batch ahead of Spark, and keeps Spark's
                 garbage collections short
    sink/        writes
    patience     how long, and how often, replicas are tried
    failures     shows errors to Spark's users

Nothing is imported here: Spark starts a Python process per query, and each process loads only the
modules that its step needs. From outside it imports `client`, `remoting`, `wire`, `reader`,
`produce`, `files`, `layout`, `base` and `errors`, but neither `server` nor `engine`.
"""
