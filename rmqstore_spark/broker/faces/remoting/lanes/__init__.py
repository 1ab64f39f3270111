"""Where requests are handled: threads beside the event loop, and what gathers in them.

worker         a thread that handles all requests that have gathered; connections take turns
handler_thread one that handles single requests in turn, and reports of offsets, which are answered
               when they are on disk
sending        requests to send; those to topics that do not exist wait for these
plain_sends    stores the messages of most of them together, without decoding their headers
send_rounds    lets those to a DLedger group gather, so that many are one round of it
later_answers  answers them in a DLedger group, when a quorum has their messages
pulling        requests for messages
ending         requests to end transactions
changing       requests to change topics and groups
"""
