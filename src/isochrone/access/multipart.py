"""Form fields of a multipart/form-data body (audio, image edits), found without reading the files in it."""

import re

HEAD_BYTES_MAX = 8192
"""Longest head of one part."""
PARTS_MAX = 64
"""Parts that are looked at."""
VALUE_BYTES_MAX = 4096
"""Longest value of a field that is read."""

_boundary = re.compile(rb'boundary=(?:"([^"]{1,200})"|([^\s;,"]{1,200}))', re.IGNORECASE).search
_name = re.compile(rb'[;\s]name=(?:"([^"]*)"|([^\s;"]+))', re.IGNORECASE).search


def form_fields(body: bytes, content_type: bytes, wanted: tuple[bytes, ...]) -> dict[bytes, bytes] | None:
    """The wanted plain fields that the form has; None where it is no form (no boundary, or never begun).

    A boundary's search passes over a file at memory speed; the search ends with the last wanted field.
    """
    found = _boundary(content_type)
    if found is None:
        return None
    delimiter = b"--" + (found[1] or found[2])
    start = body.find(delimiter)
    if start < 0:
        return None
    fields: dict[bytes, bytes] = {}
    for _ in range(PARTS_MAX):
        head = start + len(delimiter)
        value = body.find(b"\r\n\r\n", head, head + HEAD_BYTES_MAX)
        if value < 0 or body.startswith(b"--", head):
            break
        start = body.find(b"\r\n" + delimiter, value + 2)
        if start < 0:
            break
        name = _name(body, head, value)
        if name is not None and b"filename" not in body[head:value].lower():
            key = name[1] or name[2] or b""
            if key in wanted and start - value - 4 <= VALUE_BYTES_MAX:
                fields.setdefault(key, body[value + 4 : start])
                if len(fields) == len(wanted):
                    break
        start += 2
    return fields
