"""Reads ELF objects: for which instruction set one was made, and which symbols it defines and needs.

LLVM makes ELF objects on every system (see `worker`), and its linker loads them. Only the header and the symbol table are read. `worker.py`
is a script that imports this file from its own folder, so this file imports nothing of blocknb. Source: System V ABI, "Object Files".
"""

import struct

_MACHINES = {62: "x86_64", 183: "aarch64"}  # EM_X86_64, EM_AARCH64


def elf_instruction_set(data: bytes) -> str:
    """The instruction set of an ELF object, as LLVM's triples name it; "" for other formats and sets."""
    return _MACHINES.get(struct.unpack_from("<H", data, 0x12)[0], "") if _is_elf(data) else ""


def elf_symbols(data: bytes) -> tuple[list[str], list[str]]:
    """(defined global names, undefined names) of a little-endian ELF64 object; both empty for other formats."""
    if not _is_elf(data):
        return [], []
    table = struct.unpack_from("<Q", data, 0x28)[0]
    entry, count = struct.unpack_from("<HH", data, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * entry) for i in range(count)]
    defined, undefined = [], []
    for _, kind, _, _, offset, size, link, *_ in sections:
        if kind != 2:  # SHT_SYMTAB
            continue
        strings = sections[link][4]
        for at in range(offset + 24, offset + size, 24):  # the first entry is the null symbol
            name, info, _, section, _, _ = struct.unpack_from("<IBBHQQ", data, at)
            text = data[strings + name : data.index(b"\0", strings + name)].decode()
            if section == 0 and text:
                undefined.append(text)
            elif info >> 4 and section != 0:  # STB_GLOBAL or STB_WEAK
                defined.append(text)
    return defined, undefined


def _is_elf(data: bytes) -> bool:
    """Whether the bytes begin as those of a little-endian ELF64 object."""
    return data[:6] == b"\x7fELF\x02\x01"
