"""From the options of `shoal serve` to what is to be launched: finds the model, checks the machine."""

import asyncio
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from api_server.http_socket import url_of
from deploy.child import start_child
from deploy.config import ServeConfig
from deploy.errors import StartError
from deploy.launch import SIMULATED, Launch, hub_name, pull_spec
from deploy.machine_links import MachineLinks
from deploy.start_checks import check_machine
from deploy.supervisor_events import Event
from protocol.lifeline import Notice


async def prepare_launch(
    config: ServeConfig, values: Mapping[str, Any], links: MachineLinks, events: "asyncio.Queue[Event]"
) -> Launch | None:
    """What is to be started, the model's folder included if engine cores run here; None when asked to stop.

    Raises StartError.
    """
    if not config.engines:
        return Launch("", 0, config.api_servers, values, links)
    model = await _resolve(config.model, events)
    if model is None:
        return None
    check_machine(model, config.engines, values.get("kv_cache_memory_bytes"))
    name = hub_name(config.model, Path(model))
    options = values if name is None else {"served_model_name": name, **values}
    return Launch(model, config.engines, config.api_servers, options, links)


def ready_line(listening: socket.socket | None, launch: Launch, config: ServeConfig) -> str:
    own_name = "sim" if launch.model.startswith(SIMULATED) else Path(launch.model).name
    name = launch.values.get("served_model_name") or own_name
    parts = [
        *([f"{url_of(listening)}/v1"] if listening else []),
        *([f"model {name}"] if launch.engines else []),
        f"{launch.engines} engine core(s)",
        f"{launch.api_servers} API server(s)",
        *([f"joined {config.join}"] if config.join else []),
    ]
    return f"Shoal is ready: {', '.join(parts)}"


async def _resolve(model: str, events: "asyncio.Queue[Event]") -> str | None:
    """The folder of the model, fetched if need be in a process of its own (it loads MLX); None when asked to stop.

    Raises StartError.
    """
    if model.startswith(SIMULATED):
        return model
    try:
        child = await start_child(pull_spec(model, os.environ))
    except OSError as error:
        raise StartError(f"the process that fetches the model cannot be started: {error}") from error
    notices: list[Notice] = []
    end = asyncio.create_task(child.wait(notices.append))
    stop = asyncio.create_task(events.get())
    await asyncio.wait((end, stop), return_when=asyncio.FIRST_COMPLETED)
    child.kill()  # nothing happens when it has ended; otherwise it leaves nothing that looks finished
    await end
    if not stop.cancel():
        return None
    if not notices:
        raise StartError(f"model {model!r} cannot be served (see above)")
    if notices[-1].state == "failed":
        raise StartError(notices[-1].detail)
    return notices[-1].detail
