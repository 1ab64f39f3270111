"""Delivers delayed messages, once, when they are due.

delay_offsets  how far each level is delivered: `config/delayOffset.json`; what waits still
copies         makes the messages to deliver from those that wait, and recognizes those of brokers
log_progress   finds in the log what was delivered after that file was written, also by brokers
delivery       the thread that delivers
followed       what waits at a member of a group that follows, and delivers nothing

A put has made them messages of SCHEDULE_TOPIC_XXXX (`layout.record.delayed`, called by
`admission`). This folder uses `append`, `log`, `dispatch`, `tables` and `recovery.redispatch`;
`workers` starts it. The format is in docs/format.md, "Delayed messages".
"""
