"""Compiles Triton kernels for GPUs that are not here: python tests/compile_kernels.py [--some, or part of a variant's name]; a line of JSON a variant and processor.

Registers, stack and local bytes are what cuobjdump says of the machine code; a register that does not fit goes to local memory.
"""

import json
import re
import subprocess
import sys
import tempfile

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvcache.caches.quantized import scheme_of
from kvcache.kernels import cuda, cuda_attention, cuda_encode

PROCESSORS = (80, 90, 100)
HEADS = (64, 80, 96, 128, 256)
TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
MASKS = ("none", "boolean", "added")


def scheme(bits, dim, channel, block=64):
    return scheme_of("native", bits, "key" if channel else "value", "channel" if channel else "token", block, 64, dim)


def side(bits, dim, channel, block=64):
    return cuda.Side.of(scheme(bits, dim, channel, block), dim)


def kind(dim, key_bits, value_bits, dtype=torch.bfloat16, rows=16, mask=0, block=64):
    return cuda.Kind(side(key_bits, dim, True, block), side(value_bits, dim, False, block), dtype, 4, rows, block, mask)


def kinds():
    """By name: every head size and width for one token, then what else a kernel is compiled for at one size."""
    made = [kind(dim, bits, bits) for dim in HEADS for bits in cuda.NBITS]
    made += [kind(128, 4, 2), kind(128, 8, 4), *(kind(128, 4, 4, mask=mask) for mask in (1, 2)), *(kind(128, 4, 4, block=block) for block in (16, 32, 128))]
    made += [kind(dim, 4, 4, dtype) for dim, dtype in ((128, torch.float16), (256, torch.float16), (128, torch.float32))]
    made += [kind(dim, 4, 4, rows=rows, mask=1) for dim, rows in ((64, 64), (128, 32), (256, 16))]
    return {name(each): each for each in made}


def name(kind):
    return f"attend {kind.keys.dim} {kind.keys.bits}/{kind.values.bits} {TYPES[kind.dtype]} rows {kind.rows} block {kind.block} mask {MASKS[kind.mask]}"


def signature_of(function, pointers, constants):
    """What triton.compile asks for: pointers by their type, 16 bytes apart, whole numbers, and constants."""
    kinds = {each: "constexpr" if each in constants else pointers.get(each, "i32") for each in function.arg_names}
    attributes = {(i,): [["tt.divisibility", 16]] for i, each in enumerate(function.arg_names) if each in pointers and pointers[each].startswith("*")}
    return ASTSource(function, kinds, constants, attributes)


def attend(kind):
    sides = {f"{side}_{part}": type for side in ("key", "value") for part, type in (("codes", "*u8"), ("scales", "*fp16"), ("minima", "*fp16"), ("gains", "*fp32"), ("rows", f"*{TYPES[kind.dtype]}"), ("first", f"*{TYPES[kind.dtype]}"))}
    mask = ("*u8", "*u8", f"*{TYPES[kind.dtype]}")[kind.mask]
    pointers = {"query": f"*{TYPES[kind.dtype]}", "mask": mask, **dict.fromkeys(("parts", "tops", "totals"), "*fp32"), **sides, "scale": "fp32"}
    return signature_of(cuda_attention.attend, pointers, {"HEADS": 8, **kind.constants()}), dict(num_warps=kind.warps, num_stages=2, enable_fp_fusion=True)


def join(dim):
    pointers = {**dict.fromkeys(("parts", "tops", "totals"), "*fp32"), "out": "*bf16"}
    return signature_of(cuda_attention.join, pointers, {"DIM": dim, "LANES": triton.next_power_of_2(dim)}), dict(num_warps=4, enable_fp_fusion=True)


def encode(scheme, dim, block=64):
    pointers = {"states": "*bf16", "codes": "*u8", "scales": "*fp16", "minima": "*fp16", "gains": "*fp32"}
    return signature_of(cuda_encode.encode, pointers, cuda.encode_constants(scheme, dim, block)), dict(num_warps=4, enable_fp_fusion=False)


def compiled(source, options, processor):
    """Registers a thread, stack and local bytes, shared bytes a program, threads."""
    made = triton.compile(source, GPUTarget("cuda", processor, 32), options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        said = subprocess.run([triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    numbers = {word.lower(): int(number) for word, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", said)}
    return numbers | {"shared": made.metadata.shared, "threads": 32 * made.metadata.num_warps}


def everything():
    yield from ((name, attend(kind)) for name, kind in kinds().items())
    yield from ((f"join {dim}", join(dim)) for dim in HEADS)
    for channel, dims in ((True, HEADS), (False, (64, 128, 256))):
        yield from ((f"encode {dim} {bits} {'keys' if channel else 'values'}", encode(scheme(bits, dim, channel), dim)) for dim in dims for bits in cuda.NBITS)


SOME = ("attend 64 8/8", "attend 80 2/2", "attend 96 4/4", "attend 128 4/2", "attend 256 4/4 bf16 rows 16", "attend 128 4/4 fp32", "attend 64 4/4 bf16 rows 64", "attend 128 4/4 bf16 rows 32", "join 256", "encode 128 2", "encode 80 4")


def main(part=""):
    parts = SOME if part == "--some" else (part,)
    for name, (source, options) in everything():
        for processor in PROCESSORS:
            if any(part in name for part in parts):
                print(json.dumps({"kernel": name, "processor": processor, **compiled(source, options, processor)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
