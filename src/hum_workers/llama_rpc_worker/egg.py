"""LlamaEgg: an egg of llama-rpc-worker whose values go together."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import ConfigDict

from hum_workers.egg import wrappers
from hum_workers.egg.tables import Flaw
from hum_workers.egg.toml_positions import Path as KeyPath
from hum_workers.llama_rpc_worker import egg_flaws, flags
from hum_workers.llama_rpc_worker.egg_tables import LlamaTables


class LlamaEgg(LlamaTables):
    """An egg of llama-rpc-worker."""

    model_config = ConfigDict(
        title="Egg of llama-rpc-worker", json_schema_extra={"required": ["cell"]}
    )

    def advertised(self) -> list[tuple[str, KeyPath]]:
        """Returns the served name, then the further ids; a slice serves none."""
        if self.cell.role == "slice":
            return []
        named = "served_name" in self.model.model_fields_set
        key = ("model", "served_name" if named else "path")
        first: list[tuple[str, KeyPath]] = [(self.model.served_name, key)]
        return [pair for pair in [*first, *super().advertised()] if pair[0]]

    def flaws(self) -> Iterator[Flaw]:
        """Yields what is wrong between values that are right alone."""
        yield from super().flaws()
        if "role" not in self.cell.model_fields_set:
            yield Flaw(("cell", "role"), 'is missing; write "coordinator" or "slice"')
        elif self.cell.role == "slice":
            yield from egg_flaws.of_slice(self)
        else:
            yield from egg_flaws.of_coordinator(self)
        yield from self._engine_flaws()

    def cautions(self) -> Iterator[Flaw]:
        """Yields what becomes a warning."""
        yield from super().cautions()
        if self.cell.role == "slice":
            yield from egg_flaws.slice_cautions(self)

    def _engine_flaws(self) -> Iterator[Flaw]:
        role = ("cell", "role")
        for index, reason in flags.refused(self.engine.args, role=self.cell.role):
            yield Flaw(("engine", "args", index), reason, (role,))
        if found := wrappers.leaver(self.engine.command):
            yield Flaw(("engine", "command", found[0]), found[1])
        for name, reason in flags.refused_env(self.engine.env):
            yield Flaw(("engine", "env", name), reason, at_key=True)
