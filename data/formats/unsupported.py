"""Formats that are not supported, by their magic bytes."""

# Magic bytes and their format. Those made of letters may also begin a text: see `SPELLED`.
MAGICS: dict[bytes, str] = {
    b"PK\x03\x04": "a zip archive (or a PyTorch, NumPy .npz or Office file)",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"\xfd7zXZ\x00": "xz",
    b"BZh9": "bzip2",
    b"\x04\x22\x4d\x18": "lz4",
    b"\x89HDF\r\n\x1a\n": "HDF5",
    b"SQLite format 3\x00": "an SQLite database",
    b"Obj\x01": "Avro",
    b"\x80\x04\x95": "a Python pickle",
    b"\x80\x05\x95": "a Python pickle",
    b"\x7fELF": "a program",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"MMIDIDX\x00": "an index of Megatron's token files",
    b"PARE": "encrypted Parquet",
    b"FEA1": "Feather 1",
    b"GGUF": "a GGUF checkpoint",
    b"ORC": "ORC",
    b"%PDF-": "a PDF",
}
TAR = b"ustar"  # at byte 257


def title(head: bytes) -> str | None:
    """Returns the name of an unsupported format that begins with `head`, or None."""
    if head[257:262] == TAR:
        return "a tar archive"
    return next((title for magic, title in MAGICS.items() if head.startswith(magic)), None)
