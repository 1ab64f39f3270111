"""The same messages in this store, in databases, in key-value stores, and in memory.

messages     makes the messages: the same ones for all
kind         what a store must be able to do (`Kind`, `OpenStore`, `Server`)
kinds/       a file for each store, with its schema and its configuration
operations   what is measured, in processes of their own
driver       runs these processes, starts servers, kills, counts what was written
figures      the figures
page         docs/files-or-databases.md, and its plots
"""
