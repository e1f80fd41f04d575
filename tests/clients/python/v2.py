"""The Python client of the 2.x line: `v2.py legacy|auto|VERSION stdio COMMAND… | http URL [TOKEN] | sse URL`."""

import asyncio
import sys

from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from hands import plain, serve


class Hands:
    def __init__(self, client):
        self.client = client

    def about(self):
        return {"version": self.client.protocol_version}

    async def tools(self):
        return plain(await self.client.list_tools())

    async def read(self, uri):
        return plain(await self.client.read_resource(uri))

    async def call(self, name, arguments, on_progress):
        return plain(await self.client.call_tool(name, arguments, progress_callback=on_progress))

    async def cancel(self, running):
        running.cancel()


def target(transport, rest):
    match transport:
        case "stdio":
            return StdioServerParameters(command=rest[0], args=rest[1:])
        case "http" if rest[1:]:
            headers = {"Authorization": f"Bearer {rest[1]}"}
            return streamable_http_client(rest[0], http_client=create_mcp_http_client(headers))
        case "http":
            return rest[0]
        case "sse":
            return sse_client(rest[0])


async def main(mode, transport, *rest):
    async with Client(target(transport, list(rest)), mode=mode) as client:
        await serve(Hands(client))


asyncio.run(main(*sys.argv[1:]))
