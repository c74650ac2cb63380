"""All checks in their order, for a machine without a cluster as well as with one."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path

from heliograph.base.errors import HeliographError
from heliograph.base.home import ClusterHome
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.doctor import machine, members, running, secrecy
from heliograph.cluster.doctor.finding import CheckResult, problem
from heliograph.cluster.doctor.stranger import attempts
from heliograph.cluster.joining.noted import noted_state, report_of
from heliograph.cluster.lifecycle import with_secret


def examine(home: Path, namespace: str, config_file: Path | None = None) -> Iterator[CheckResult]:
    """Yield the finding of each check as it is made.

    Args:
        config_file: None: that of the home, if it has one.
    """
    yield machine.check_python()
    yield machine.check_ray()
    yield machine.check_java()
    yield machine.check_open_files()
    yield machine.check_memory()
    try:
        options = {} if config_file is None else {"config_file": config_file}
        config = ClusterConfig(home=home, namespace=namespace, **options)
        # `helio up` makes the secret of the cluster, so its absence before the first start is no problem.
        made = with_secret(config, ClusterHome(home), is_running=False)
        bookie = made.bookie_config("bookie-1", config.data_root)
        state = noted_state(ClusterHome(home))
    except HeliographError as error:
        yield problem("settings", str(error), "correct them: docs/operations/settings.md lists all")
        return
    if config.has_etcd_members:
        yield machine.check_etcd(config.etcd_config().binary)
    for directory in machine.separate_disks((config.data_root, home)):
        yield from machine.check_disk(directory, bookie.full_share, bookie.headroom_bytes)
    yield secrecy.check_modes(config)
    yield from secrecy.check_certificates(config, datetime.datetime.now(datetime.UTC))
    answers = running.check_ray_answers(state)
    runs = state is not None and (state.own_process is not None or not (state.own_pid or answers.way_out))
    is_authenticated: bool | None = config.auth_config().is_enabled
    if state is not None and state.node_address:  # the settings that decide are those of the machine of `helio up`
        is_authenticated = None
        yield secrecy.callers_elsewhere(state)
    else:
        if not (runs and is_authenticated):
            yield secrecy.check_strangers(config)
        yield from running.check_ports(config, is_running=state is not None and not answers.way_out)
    yield answers
    if state is not None and runs:
        yield from members.check_members(state)
        report = report_of(state, ClusterHome(home))
        uid, found = attempts(secrecy.doors_of(state, report), secrecy.files_of(state, ClusterHome(home)))
        yield from secrecy.judge_attempts(uid, found, is_authenticated=is_authenticated)
        yield from running.check_report(report)
