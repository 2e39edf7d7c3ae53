"""thrum, the wire between humd and a bee: tones, their pacing, the connection, the identity.

Nothing here knows of engines, cells or turns. `chi`, `tones`, `protocol`, `bucket`, `outbox` and
`pacer` are pure; `connection`, `identity` and `paths` do the I/O.
"""
