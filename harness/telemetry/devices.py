"""Which boards a server sees. NVML and nvidia-smi number boards by their bus and ignore CUDA_VISIBLE_DEVICES, CUDA may
number them by speed: so every board is named by its UUID from here on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from results.errors import UsageError


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A board, or a MIG instance of one (`parent` is then the board's UUID). What is not known is None."""

    uuid: str
    name: str
    index: int
    parent: str | None = None
    pci: str | None = None
    driver: str | None = None
    compute_capability: str | None = None
    memory_total_bytes: int | None = None
    memory_bus_bits: int | None = None
    memory_clock_max_mhz: int | None = None
    sm_clock_max_mhz: int | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    persistence: bool | None = None
    ecc: bool | None = None
    ecc_uncorrected: int | None = None
    mig: bool | None = None

    @property
    def board(self) -> str:
        """The UUID of the board it is or lies on."""
        return self.parent or self.uuid

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> DeviceInfo:
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Selection:
    """Devices in the server's own order; `warnings` say what could not be told for sure."""

    devices: tuple[DeviceInfo, ...]
    warnings: tuple[str, ...] = ()

    @property
    def uuids(self) -> tuple[str, ...]:
        return tuple(d.uuid for d in self.devices)

    @property
    def boards(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(d.board for d in self.devices))


@dataclass(slots=True)
class _Found:
    devices: list[DeviceInfo] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    numbered: bool = False


def visible_devices(value: str | None, known: Sequence[DeviceInfo], order: str | None = None) -> Selection:
    """The devices that CUDA_VISIBLE_DEVICES=`value` leaves visible of all that are `known`.

    As CUDA reads it: None is all boards, an empty text none; entries are indices (leading digits count), beginnings of a
    board's UUID, or MIG instances; the list ends at the first entry that is none of these, -1 for one. `order` is
    CUDA_DEVICE_ORDER. Raises UsageError for a device that is named twice, which CUDA refuses too.
    """
    boards = sorted((d for d in known if d.parent is None), key=lambda d: d.index)
    instances = [d for d in known if d.parent is not None]
    found = _Found()
    if value is None:
        found.devices = [_entry_of(board, instances, found) for board in boards]
        found.numbered = True
    else:
        for text in value.split(",") if value.strip() else []:
            device = _named(text.strip(), boards, instances, found)
            if device is None:
                break
            if device.uuid in (d.uuid for d in found.devices):
                raise UsageError(
                    f"CUDA_VISIBLE_DEVICES={value!r} names the device {device.uuid} twice: CUDA refuses that. Name each once."
                )
            found.devices.append(device)
    if any(d.parent for d in found.devices) and len(found.devices) > 1:
        found.warnings.append("with MIG, CUDA uses the first instance that is listed and no other device")
        found.devices = found.devices[:1] if found.devices[0].parent else found.devices
    if found.numbered and len({b.name for b in boards}) > 1 and order != "PCI_BUS_ID":
        found.warnings.append(
            "boards of several models are numbered, and without CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA numbers them by speed: "
            "which board an index means is not known; name them by UUID"
        )
    return Selection(tuple(found.devices), tuple(found.warnings))


def chosen_devices(names: Sequence[str], known: Sequence[DeviceInfo]) -> Selection:
    """Devices by UUID or the beginning of one. Raises UsageError for a name that fits none or several."""
    out: list[DeviceInfo] = []
    for name in names:
        fits = [d for d in known if d.uuid.lower().startswith(name.lower())]
        if len(fits) != 1:
            there = ", ".join(d.uuid for d in known) or "none"
            raise UsageError(f"telemetry.devices: {name!r} fits {len(fits)} devices. There are: {there}.")
        if fits[0] not in out:
            out.append(fits[0])
    return Selection(tuple(out))


def _named(
    text: str, boards: Sequence[DeviceInfo], instances: Sequence[DeviceInfo], found: _Found
) -> DeviceInfo | None:
    """One entry, or None where the list ends."""
    if digits := re.match(r"\+?(\d+)", text):
        found.numbered = True
        index = int(digits[1][:9])
        return _entry_of(boards[index], instances, found) if index < len(boards) else None
    old_form = re.fullmatch(r"MIG-(GPU-[0-9a-fA-F-]+)/(\d+)/\d+", text)
    if old_form:
        found.warnings.append(f"{text}: only the board of that instance is known")
        return next((b for b in boards if b.uuid.lower() == old_form[1].lower()), None)
    kind = instances if text.upper().startswith("MIG-") else boards if text.upper().startswith("GPU-") else ()
    fits = [d for d in kind if d.uuid.lower().startswith(text.lower())]
    if len(fits) != 1:
        found.warnings.append(f"CUDA_VISIBLE_DEVICES: {text!r} fits {len(fits)} devices, so the list ends before it")
        return None
    return fits[0]


def _entry_of(board: DeviceInfo, instances: Sequence[DeviceInfo], found: _Found) -> DeviceInfo:
    """The board, or its first instance where it is divided: CUDA sees no more of it."""
    own = [d for d in instances if d.parent == board.uuid]
    if not own:
        return board
    found.warnings.append(f"{board.uuid} is divided by MIG: CUDA takes its first instance, {own[0].uuid}")
    return own[0]
