"""Does what the test program asks, one JSON line in, one out, with whatever client it is given.

A client here is an object with `about`, `tools`, `call` and `read`, each answering with plain JSON.
"""

import asyncio
import contextlib
import json
import sys


def plain(model):
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


async def call(client, order):
    """A call, cancelled at its first progress notification when the order says so."""
    progress = []
    started = asyncio.Event()

    async def on_progress(done, total, message):
        progress.append({"progress": done, "message": message})
        started.set()

    wanted = on_progress if order.get("progress") else None
    running = asyncio.create_task(client.call(order["name"], order["arguments"], wanted))
    if order.get("cancel"):
        await asyncio.wait({running, asyncio.create_task(started.wait())}, return_when=asyncio.FIRST_COMPLETED)
        await client.cancel(running)
        with contextlib.suppress(asyncio.CancelledError):
            return {"result": await running, "progress": progress}
        return {"cancelled": True, "progress": progress}
    return {"result": await running, "progress": progress}


async def obey(client, order):
    match order["do"]:
        case "about":
            return {"result": client.about()}
        case "tools":
            return {"result": await client.tools()}
        case "read":
            return {"result": await client.read(order["uri"])}
        case "call":
            return await call(client, order)


async def serve(client):
    orders = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    while line := await orders.readline():
        try:
            answer = await obey(client, json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
