"""Which confinement is chosen, and what an operator is told about it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hum_workers.errors import EngineError
from hum_workers.process import confine
from hum_workers.process.confine import HostAllows, plan

NAMESPACE = ("/usr/bin/setpriv", "--pdeathsig", "KILL", "/usr/bin/unshare", "--pid")
ALL = HostAllows(
    namespace=NAMESPACE, unified=Path("/v2"), unified_memory=False, memory=Path("/v1/memory")
)
NOTHING = HostAllows(refusal="unshare: unshare failed: Operation not permitted")


def test_a_namespace_is_taken_where_it_can_be_had() -> None:
    way = plan(ALL)
    assert way.wrap(["python", "guard.py"]) == [*NAMESPACE, "python", "guard.py"]
    assert way.describe() == "PID namespace (as root); stop by cgroup.kill at /v2"
    assert plan(ALL, confine="guard").wrap(["python"]) == ["python"]


def test_a_guard_alone_says_why_and_what_it_can_t_cover() -> None:
    assert plan(NOTHING).describe() == (
        "guard process, as a PID namespace is refused here: unshare: unshare failed: Operation "
        "not permitted; it can't cover its own SIGKILL together with the tender's; no cgroup"
    )
    blind = plan(HostAllows(refusal="x", proc_readable=False)).describe()
    assert "nor find members that leave the engine's group" in blind


def test_a_namespace_that_is_insisted_on_and_refused_is_an_error_with_the_reason() -> None:
    with pytest.raises(EngineError, match=r"limits\.confine.*Operation not permitted.*\"auto\""):
        plan(NOTHING, confine="namespace")


def test_a_memory_limit_goes_to_a_controller_else_to_the_tender() -> None:
    by_v1 = plan(ALL, memory=1 << 30)
    assert not by_v1.memory_watched
    assert by_v1.describe().endswith("memory limit by cgroup at /v1/memory")
    both = HostAllows(unified=Path("/v2"), unified_memory=True, memory=Path("/v1/memory"))
    by_v2 = plan(both, memory=1 << 30)
    assert not by_v2.memory_watched
    assert by_v2.describe().endswith("memory limit by cgroup at /v2")
    assert len(by_v2.folders()) == 1
    for watched in (plan(ALL, memory=1, cgroup="off"), plan(NOTHING, memory=1)):
        assert watched.memory_watched
        assert watched.describe().endswith("memory limit by the tender's own watch")
    assert not plan(NOTHING).memory_watched


def test_without_cgroups_there_is_nothing_to_enter_kill_or_remove() -> None:
    way = plan(ALL, cgroup="off")
    way.create()
    way.kill()
    assert way.folders() == []
    assert way.pids() == set()
    assert way.oom_kills() == 0
    assert way.remove()


def test_a_cgroup_that_can_no_longer_be_made_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(EngineError, match=r"can't make the cgroup /v2/hum-cell-.*cgroup = \"off\""):
        plan(ALL, name="x").create()


def test_the_survey_promises_only_what_works() -> None:
    allows = confine.survey()
    assert bool(allows.namespace) != bool(allows.refusal)
    if allows.namespace:
        done = subprocess.run(
            [*allows.namespace, "sh", "-c", "echo $$"], capture_output=True, check=True
        )
        assert done.stdout == b"1\n"
    for folder in (allows.unified, allows.memory):
        assert folder is None or folder.is_dir()
    if allows.unified:
        assert not list(allows.unified.glob(f"hum-cell-survey-{os.getpid()}-*"))
    assert confine.survey() is allows


def test_without_the_tools_there_is_no_namespace(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    allows = confine.survey.__wrapped__()
    assert allows.namespace == ()
    assert "setpriv and unshare" in allows.refusal


def test_a_folder_that_is_no_cgroup_is_good_for_nothing(tmp_path: Path) -> None:
    assert confine._try_cgroup(tmp_path) == ""
    assert confine._try_cgroup(tmp_path / "none") == ""
    assert list(tmp_path.iterdir()) == []
