"""What a model might run: draws the points of data.csv into plot.png, with nothing but the standard library."""

import struct
import zlib

WIDTH, HEIGHT = 64, 48

points = [tuple(map(int, line.split(","))) for line in open("data.csv")]
pixels = [bytearray(b"\xff" * WIDTH) for _ in range(HEIGHT)]
for x, y in points:
    pixels[HEIGHT - 1 - y][x] = 0


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 0, 0, 0, 0)
lines = b"".join(b"\0" + line for line in pixels)
with open("plot.png", "wb") as file:
    file.write(b"\x89PNG\r\n\x1a\n")
    file.write(chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b""))
print(f"drew {len(points)} points")
