"""The kinds of tone that humd and its bees exchange (thrum, sections 1, 4 and 6)."""

from __future__ import annotations

from enum import StrEnum


class Chi(StrEnum):
    """The `chi` of a tone. The list is not closed: a tone of another kind is passed on as it is."""

    HELLO = "hello"
    BREATH = "breath"
    ECHO = "echo"
    LOG = "log"
    ATTACH = "attach"
    PROMPT = "prompt"
    CANCEL = "cancel"
    CLEANUP = "cleanup"
    CURATE = "curate"
    TOOL_RESULT = "tool-result"
    SESSION_READY = "session-ready"
    CHUNK = "chunk"
    TOOL_CALL = "tool-call"
    TOOL_INFO = "tool-info"
    TOOL_META = "tool-meta"
    PULSE = "pulse"
    FINISH = "finish"
    ERROR = "error"
    STOPPED = "stopped"
    PERMISSION_ASK = "permission-ask"
    PERF_MARK = "perf-mark"
    WANE_SYNC = "wane-sync"
    GOSSIP_PUBLISH = "gossip-publish"
    PEER_ADD = "peer-add"


REPLY_CHIS = frozenset(
    {
        Chi.CHUNK,
        Chi.FINISH,
        Chi.ERROR,
        Chi.TOOL_CALL,
        Chi.TOOL_INFO,
        Chi.SESSION_READY,
        Chi.PULSE,
    }
)
"""What humd fans out to whoever claimed the sid; without a sid it is a fault (section 6)."""

HELLO_CHIS = (
    Chi.HELLO,
    Chi.PROMPT,
    Chi.CANCEL,
    Chi.CLEANUP,
    Chi.CURATE,
    Chi.TOOL_RESULT,
    Chi.CHUNK,
    Chi.FINISH,
    Chi.ERROR,
    Chi.TOOL_CALL,
    Chi.SESSION_READY,
    Chi.PULSE,
)
"""The `chis` of a worker's hello, in the order of section 4."""
