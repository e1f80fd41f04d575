"""The Python client of the 1.x line: `v1.py stdio COMMAND… | http URL [TOKEN] | sse URL`."""

import asyncio
import sys

from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.types import CancelledNotification, CancelledNotificationParams, ClientNotification

from hands import plain, serve


class Hands:
    def __init__(self, session, initialized):
        self.session = session
        self.initialized = initialized
        self.request = None

    def about(self):
        return {"version": self.initialized.protocolVersion}

    async def tools(self):
        return plain(await self.session.list_tools())

    async def read(self, uri):
        return plain(await self.session.read_resource(uri))

    async def call(self, name, arguments, on_progress):
        # The session numbers its requests itself and does not say how; a cancellation must name one.
        self.request = self.session._request_id
        return plain(await self.session.call_tool(name, arguments, progress_callback=on_progress))

    async def cancel(self, running):
        """This line leaves the notification to its caller."""
        parameters = CancelledNotificationParams(requestId=self.request, reason="no longer wanted")
        notification = CancelledNotification(method="notifications/cancelled", params=parameters)
        await self.session.send_notification(ClientNotification(notification))
        running.cancel()


def connection(transport, rest):
    match transport:
        case "stdio":
            return stdio_client(StdioServerParameters(command=rest[0], args=rest[1:]))
        case "http" if rest[1:]:
            headers = {"Authorization": f"Bearer {rest[1]}"}
            return streamable_http_client(rest[0], http_client=create_mcp_http_client(headers))
        case "http":
            return streamable_http_client(rest[0])
        case "sse":
            return sse_client(rest[0])


async def main(transport, *rest):
    async with connection(transport, list(rest)) as streams, ClientSession(*streams[:2]) as session:
        await serve(Hands(session, await session.initialize()))


asyncio.run(main(*sys.argv[1:]))
