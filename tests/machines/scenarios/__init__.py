"""What can happen to machines, by name. Each begins and ends with a healthy cluster, and checks histories."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.machines.scenarios import cuts, disk, moves, power, scale, upgrades
from tests.machines.scenarios.stage import Stage

SCENARIOS: Mapping[str, Callable[[Stage], None]] = {
    scenario.__name__: scenario
    for scenario in (
        power.machine_lost,
        power.second_machine_lost,
        power.head_lost,
        power.head_killed,
        power.reboot,
        scale.scale_out,
        scale.scale_in,
        scale.operator_killed,
        moves.bookie_moved,
        disk.disk_lost,
        disk.disk_full,
        disk.disk_overrun,
        cuts.cut_off,
        cuts.cut_one_way,
        cuts.bookie_cut_from_metadata,
        cuts.broker_cut_from_metadata,
        cuts.metadata_frozen,
        cuts.broker_cut_from_bookies,
        cuts.delay_and_loss,
        upgrades.rolling_restart,
        upgrades.rolling_upgrade,
    )
}
