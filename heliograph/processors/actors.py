"""Instances of a processor as detached actors in Ray."""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from typing import TYPE_CHECKING, Any

from heliograph.base.errors import BadRequestError, ProducerFencedError, ResourceError
from heliograph.base.home import DEFAULT_NAMESPACE
from heliograph.base.processes import EXIT_BROKEN
from heliograph.client.sync.handle import refuse_on_running_loop, threads
from heliograph.processors.logic import check_kind
from heliograph.tasks.pool import WorkerActor, reason_of

if TYPE_CHECKING:
    from heliograph.processors.deployment import ProcessorDeployment

log = logging.getLogger(__name__)


class InstanceWork:
    """The work of the actor of an instance; ``WorkerActor`` restarts it if the cluster fails.

    Args:
        deployment: Id of the deployment that it belongs to.
        namespace: Ray namespace of the actor.
    """

    def __init__(self, processor: ProcessorDeployment, number: int, deployment: str, namespace: str) -> None:
        self._processor = processor
        self._number = number
        self._deployment = deployment
        self._namespace = namespace

    async def work(self, name: str) -> None:
        """Run the instance. The actor ends for good once the processor is deleted or deployed again.

        Raises:
            HeliographError: It cannot run now.
        """
        client = await self._processor.connected()
        try:
            await self._processor.work_as(client, self._number, self._deployment)
        except ProducerFencedError as error:
            log.critical("%s ends its process: %s", name, error)
            os._exit(EXIT_BROKEN)  # Ray starts it again, unless this is the process that was given up
        finally:
            await asyncio.shield(client.close())
        import ray

        ray.kill(ray.get_actor(name, namespace=self._namespace))


def deploy(processor: ProcessorDeployment) -> None:
    """Start the instances of a processor; those of an earlier deployment commit and end. Errors are those of
    ``ProcessorDeployment.deploy``."""
    refuse_on_running_loop(None, "deploy", "heliograph.process(...).work")
    try:
        import ray
    except ImportError as error:
        raise ResourceError("instances in Ray need Ray: pip install 'heliograph-ray[cluster]'", field="ray") from error
    from ray.exceptions import RayError

    if not ray.is_initialized():
        ray.init()
    namespace = (processor.client.options.discovery_namespace if processor.client else None) or DEFAULT_NAMESPACE
    deployment, name = uuid.uuid4().hex, processor.options.name
    options: dict[str, Any] = {"num_cpus": 1, "max_restarts": -1, **processor.ray_options}
    probing: dict[str, Any] = {"num_cpus": 0}
    if "runtime_env" in options:
        probing["runtime_env"] = options["runtime_env"]
    try:
        ray.get(ray.remote(_probe).options(**probing).remote(processor))
        made = [
            ray.remote(WorkerActor).options(
                name=f"heliograph-processor-{name}-{number}-{deployment[:8]}",
                namespace=namespace,
                lifetime="detached",
                max_concurrency=4,
                **options,
            )
            for number in range(processor.options.instances)
        ]
    except (RayError, TypeError, ValueError, ImportError, AttributeError) as error:
        is_option = isinstance(error, ValueError)
        what = f"Ray refuses the options of {name}" if is_option else f"{name} cannot be imported where it runs"
        field = "ray_options" if is_option else "function"
        raise BadRequestError(f"{what}: {reason_of(error)}", field=field) from error
    threads.current().run(processor.registered(deployment))
    for number, actor in enumerate(made):
        work: Any = InstanceWork(processor, number, deployment, namespace)
        actor.remote(work, f"heliograph-processor-{name}-{number}-{deployment[:8]}")


def _probe(processor: ProcessorDeployment) -> None:
    """Do nothing with a processor that was unpickled here, so its module is here, too."""
    check_kind(processor.kind)
