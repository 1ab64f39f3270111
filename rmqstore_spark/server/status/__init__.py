"""Pages for people on the metrics port: what a process does, and the messages of its stores.

They only read. An answer is HTML that is made here, one file of style, and no script. Who opens
a page needs the rights that the same question needs elsewhere (docs/operate.md, "Status pages").

site      answers requests, within limits
routes    the pages by their address: the right that each needs, and what it is made from
question  a request for a page, and what its reader may see
asking    what is asked for, checked, and what is answered
guard     who sees the pages, and from where a request may come
watched   the stores: their figures of now
history   what the figures were in the last minutes
problems  the last warnings and errors of the log
views     what pages show, as plain objects
browser   reads messages
markup    makes HTML, in which every text is escaped
plots     makes small plots
pages/    the pages

`style.css` is beside them.
"""
