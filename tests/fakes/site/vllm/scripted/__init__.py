"""Parts of the scripted engine.

arguments  the real flags (flags.json), the config file, usage errors and help
faults     what FAKE_ENGINE asks of the process: hangs, exits, floods, children
plan       one chat request -> what is answered, or a refusal (pure)
media      images, audio and video in a request (pure)
events     the answer as bytes of an event stream (pure)
engine     sequences running and waiting, pace, counters
server     HTTP/1.1 on the Unix socket
program    start, log marks, signals, stop

FAKE_ENGINE is a JSON object: see faults.Faults. A request is steered by a JSON object as the whole
last user message, `{"fake": {...}}`: see plan.Fake. Without it the answer is "w0 w1 w2 ..." of
`max_tokens` words (16 if the request does not say).
"""
