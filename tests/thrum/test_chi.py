"""The vocabulary of kinds."""

from __future__ import annotations

from hum_workers.thrum.chi import HELLO_CHIS, REPLY_CHIS, Chi


def test_a_chi_is_its_word_on_the_wire() -> None:
    assert f"{Chi.SESSION_READY}" == "session-ready"
    assert {"tool-call": 1}[Chi.TOOL_CALL] == 1


def test_a_word_from_the_wire_is_found_among_the_replies() -> None:
    assert "chunk" in REPLY_CHIS
    assert "prompt" not in REPLY_CHIS
    assert "tool-result" not in REPLY_CHIS


def test_the_hello_lists_the_chis_of_section_4_in_order() -> None:
    assert " ".join(HELLO_CHIS) == (
        "hello prompt cancel cleanup curate tool-result chunk finish error tool-call "
        "session-ready pulse"
    )
