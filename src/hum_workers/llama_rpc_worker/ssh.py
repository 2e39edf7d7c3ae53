"""The SSH library, narrowed to what a slice's door needs: one way to prove oneself, one cipher.

A bee's Ed25519 seed is its key on both sides. Of SSH nothing is left but public keys of that kind,
the subsystem of `questions` and byte streams to one address. Importing this module costs 0.3 s and
12 MiB: import it, and what imports it, where an egg needs it.
"""

from __future__ import annotations

import getpass
import hashlib
import os
from typing import Any

import asyncssh
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hum_workers.llama_rpc_worker.gate import Gates

ALGORITHM = "ssh-ed25519"
_ED25519_BYTES = 32
DEAD_PEER_TIME = 10.0
"""Seconds of silence, keepalives unanswered, after which a connection is lost."""
_KEEPALIVES = 2
CIPHER = "aes128-gcm@openssh.com"
PACKET_BYTES = 32 * 1024
REKEY_BYTES = 1024 * 1024 * 1024
"""After which a connection gets new keys; the library also does so each hour."""
WINDOW_BYTES = 1024 * 1024
"""Of one byte stream, unread by the other side; also the most that lies in our memory for it."""

# At its default level the library names each stream's target, which is the lease's token.
asyncssh.set_log_level("WARNING")


def narrowed() -> dict[str, Any]:
    """Returns the options that both sides have in common."""
    return {
        "config": None,
        "tunnel": Gates(),
        "x509_trusted_certs": None,
        "gss_host": None,
        "kex_algs": ["curve25519-sha256"],
        "encryption_algs": [CIPHER],
        "mac_algs": ["hmac-sha2-256-etm@openssh.com"],
        "compression_algs": None,
        "signature_algs": [ALGORITHM],
        "rekey_bytes": REKEY_BYTES,
        "keepalive_interval": DEAD_PEER_TIME / (_KEEPALIVES + 1),
        "keepalive_count_max": _KEEPALIVES,
    }


def key_of(seed: bytes) -> asyncssh.SSHKey:
    """Returns a bee's seed as the library's private key."""
    text = Ed25519PrivateKey.from_private_bytes(seed).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return asyncssh.import_private_key(text)


def hid_of_key(key: asyncssh.SSHKey) -> str | None:
    """Returns the hid that a public key proves; None: it is of no kind that bees have."""
    if key.get_algorithm() != ALGORITHM:
        return None
    # RFC 8709, section 4: the name of the kind, then 32 bytes of key, each behind its length.
    return "wbee_" + hashlib.sha256(key.public_data[-_ED25519_BYTES:]).hexdigest()


def name_the_user() -> None:
    """Gives the user a name where it has none, as in a container: the library insists on one."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = "bee"
