"""
tfevents.py: TensorBoard's event files, written by hand. report.py uses it; standard library only.

A file is a chain of records (tensorflow/core/lib/io/record_writer.cc):

    uint64 length | uint32 masked CRC of those 8 bytes | bytes | uint32 masked CRC of the bytes        all little-endian

The CRC is CRC-32C (Castagnoli, the polynomial of iSCSI, RFC 3720), not the one in zlib. It is masked, turned right by
15 bits and moved by a constant, so that the CRC of bytes that hold a CRC stays a good one.

The bytes of a record are one Event, in the wire format of protocol buffers: a field is a varint number * 8 + type, then
a varint (type 0), eight bytes (1), a length and that number of bytes (2), or four bytes (5). Of event.proto,
summary.proto and tensor.proto:

    Event          1 wall_time double   2 step int64   3 file_version string   5 summary Summary
    Summary        1 value Value, repeated
    Value          1 tag string   2 simple_value float   8 tensor TensorProto   9 metadata SummaryMetadata
    TensorProto    1 dtype (7: string)   8 string_val bytes
    SummaryMetadata  1 plugin_data { 1 plugin_name string }

A number is a Value with a simple_value; a text is one with a tensor of one string, and the plugin's name "text".
"""
import struct


def crc_table():
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


TABLE = crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def masked(crc):
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record(data):
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(crc32c(length))) + data + struct.pack("<I", masked(crc32c(data)))


def varint(n):
    """Of 64 bits; a negative number is its two's complement."""
    n &= (1 << 64) - 1
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    out.append(n)
    return bytes(out)


def field(number, content):
    """content: bytes, text, or the bytes of another message."""
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(data)) + data


def event(wall_time, step, content):
    """The record of an Event. content: its file_version or its summary, as a field."""
    data = struct.pack("<Bd", 1 << 3 | 1, wall_time)
    return record(data + (varint(2 << 3) + varint(step) if step else b"") + content)


def begin(wall_time):
    """The first record of every file."""
    return event(wall_time, 0, field(3, "brain.Event:2"))


def scalars(wall_time, step, numbers):
    """numbers: pairs of a tag and a float."""
    values = (field(1, field(1, tag) + struct.pack("<Bf", 2 << 3 | 5, number)) for tag, number in numbers)
    return event(wall_time, step, field(5, b"".join(values)))


def text(wall_time, step, tag, content):
    tensor = varint(1 << 3) + varint(7) + field(8, content)
    metadata = field(1, field(1, "text"))
    return event(wall_time, step, field(5, field(1, field(1, tag) + field(8, tensor) + field(9, metadata))))
