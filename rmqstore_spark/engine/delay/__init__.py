"""Delivers delayed messages, once, when they are due.

due        knows which messages of a level have waited long enough, whatever the clock says
copies     makes the messages to deliver from those that wait
delay_offsets  how far each level is delivered: `config/delayOffset.json`
undelivered  finds the oldest message that waits
recall     finds in the log what was delivered after that file was written
brokers_copies  finds what brokers delivered, for levels that the file does not know
delivery   the thread that delivers

A put has made them messages of SCHEDULE_TOPIC_XXXX (`layout.record.delayed`, called by
`admission`). This folder uses `append`, `log`, `dispatch`, `tables` and `recovery.redispatch`;
`workers` starts it. The format is in docs/format.md, "Delayed messages".
"""
