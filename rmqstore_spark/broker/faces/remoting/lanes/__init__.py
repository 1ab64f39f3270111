"""Where requests are handled: threads beside the event loop, and what gathers in them.

fair_queue     jobs of several connections, which take turns
worker         a thread that handles all requests that have gathered
handler_thread one that handles single requests in turn
new_topics     creates the topics of sends, all that gather with one write
new_groups     does the same for the groups that consumers name
sending        requests to send
pulling        requests for messages, which wait for them
ending         requests to end transactions
changing       requests to change topics and groups
saved_reports  reports of offsets, answered when they are on disk
"""
