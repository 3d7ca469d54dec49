# ruff: noqa: N803, N806, C408, E501, E731, F401, B023, PLC0206, PLR0915, RET505, RUF005, RUF059, SIM300
# mypy: ignore-errors
"""An experiment: products of quantised weights that are repacked for tensor cores, in Triton's Gluon.

    python benchmarks/packed_products.py     # checks and times on a GPU

On an H200, the matrices of Qwen3-8B's shape take 2.36 ms for up to 16 tokens in Q4_K, beside 13.36
ms of the kernel that serves (`kernels/matmul.py`), and 6.4 beside 21.6 ms for 64 tokens; the floor
is 1.1 ms. Bits are equal in any company there. Nothing serves with it yet: loads do not repack
weights, and it lacks biases, experts, and several matrices in a launch.

A warp multiplies 16 rows (times MT) by N columns. A thread's words are the codes of its own places
of the A operand of m16n8k16, so nothing is shuffled. Activations are repacked ("activate") alike: a
thread reads its part of the B operand as 16 bytes, and a warp 512 neighbouring bytes.

The chain of one result: superblocks of 256 in ascending order within a part of K; parts (a number
that follows from the matrix's shape) are added in ascending order to 0; times the token's factor.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import constexpr_function
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

# ------------------------------------------------------------------------------------ packing


def _tiles(raw, size):
    """(rows, SB * size) bytes to (tiles, 16, SB, size); rows are filled up to whole tiles."""
    rows = len(raw)
    raw = raw.reshape(rows, -1, size)
    if rows % 16:
        raw = torch.cat([raw, raw.new_zeros(16 - rows % 16, *raw.shape[1:])])
    return raw.reshape(-1, 16, raw.shape[1], size)


def _in_chunks(pack, raw, size):
    step = max(16, (1 << 24) // raw.shape[1] // 16 * 16)
    return torch.cat([pack(_tiles(raw[at : at + step], size)) for at in range(0, len(raw), step)])


def _word(fields, bits):
    """The last axis as fields of words of 32 bits, lowest first."""
    word = fields[..., 0].int()
    for number in range(1, fields.shape[-1]):
        word = word | (fields[..., number].int() << (bits * number))
    return word


def _halves32(raw):
    """Pairs of bytes (..., 4) as one word."""
    return _word(raw, 8)


Q4_WORDS = 512 + 64 + 16


def _pack_q4_k(raw):
    tiles, _, blocks, _ = raw.shape
    first, second, third = raw[..., 4:8], raw[..., 8:12], raw[..., 12:16]
    scale = torch.cat([first & 63, third & 15 | first >> 6 << 4], -1)  # (tiles, 16, SB, 8)
    least = torch.cat([second & 63, third >> 4 | second >> 6 << 4], -1)
    q = raw[..., 16:].reshape(tiles, 16, blocks, 4, 1, 32)
    nib = torch.cat([q & 15, q >> 4], 4)  # (tiles, 16, SB, t, h, 32): run 2t + h
    nib = nib.reshape(tiles, 16, blocks, 4, 2, 2, 4, 2, 2)  # ... t, h, jh, jl, i, x
    nib = nib.permute(0, 2, 4, 1, 3, 7, 5, 8, 6)  # tile, SB, h, row, t, i, jh, x, jl
    codes = _word(nib.reshape(tiles, blocks, 512, 8), 4)
    small = torch.stack([scale, least], -2)  # (tiles, 16, SB, 2, 8)
    small = small.reshape(tiles, 16, blocks, 2, 4, 2).permute(
        0, 2, 1, 4, 3, 5
    )  # tile SB row t sm h
    small = _word(small.reshape(tiles, blocks, 64, 4), 8)
    d = _halves32(raw[..., :4]).permute(0, 2, 1)  # d | dmin << 16
    return torch.cat([codes, small, d], -1).contiguous()


def pack_q4_k(raw):
    """(tiles, SB, 592) words: codes [h][row][t][4], scales and minima [row][t], d [row]."""
    return (_in_chunks(_pack_q4_k, raw, 144),)


Q6_WORDS = 512 + 256 + 64 + 16
_Q6_FIELD = (0, 4, 2, 6, 8, 12, 10, 14)  # where the upper bits of an output's codes are


def _pack_q6_k(raw):
    tiles, _, blocks, _ = raw.shape
    low = raw[..., :128].reshape(tiles, 16, blocks, 2, 1, 64)
    low = torch.cat([low & 15, low >> 4], 4).reshape(tiles, 16, blocks, 256)
    high = raw[..., 128:192].reshape(tiles, 16, blocks, 2, 1, 32)
    high = torch.cat([high >> shift & 3 for shift in (0, 2, 4, 6)], 4)
    high = high.reshape(tiles, 16, blocks, 256)

    def places(v):  # K is (2c, 8o, 4t, 2h, 2b)
        return v.reshape(tiles, 16, blocks, 2, 8, 4, 2, 2)

    v = places(low).reshape(tiles, 16, blocks, 2, 2, 4, 4, 2, 2)  # tile row SB c i p t h b
    v = v.permute(0, 2, 3, 1, 6, 7, 4, 8, 5)  # tile SB c row t h i b p: nibble p + 4 b
    codes = _word(v.reshape(tiles, blocks, 512, 8), 4)
    v = places(high).permute(0, 2, 1, 5, 3, 6, 7, 4)  # tile SB row t c h b o
    bits = torch.zeros(v.shape[:-2], dtype=torch.int32, device=raw.device)
    for b in range(2):
        for o in range(8):
            bits = bits | (v[..., b, o].int() << (16 * b + _Q6_FIELD[o]))
    small = _word((raw[..., 192:208] ^ 128).permute(0, 2, 1, 3).reshape(tiles, blocks, 64, 4), 8)
    d = raw[..., 208:210].contiguous().view(torch.float16).float().view(torch.int32)
    d = d.reshape(tiles, 16, blocks).permute(0, 2, 1)
    return torch.cat([codes, bits.reshape(tiles, blocks, 256), small, d], -1).contiguous()


def pack_q6_k(raw):
    """(tiles, SB, 848) words: low [c][row][t][h][i], high [row][t][c][h], scales [row][4], d [row]."""
    return (_in_chunks(_pack_q6_k, raw, 210),)


Q8_WORDS = 1024 + 64


def _pack_q8_0(raw):
    tiles, _, blocks, _ = raw.shape
    raw = raw.reshape(tiles, 16, blocks, 8, 34)
    codes = (raw[..., 2:] ^ 128).reshape(tiles, 16, blocks, 4, 2, 2, 4, 2, 2)  # c i y t h b
    codes = codes.permute(0, 2, 3, 1, 6, 7, 4, 5, 8)  # tile SB c row t h i (y b)
    codes = _word(codes.reshape(tiles, blocks, 1024, 4), 8)
    d = _halves32(raw[..., :2].reshape(tiles, 16, blocks, 4, 4)).permute(0, 2, 1, 3)
    return torch.cat([codes, d.reshape(tiles, blocks, 64)], -1).contiguous()


def pack_q8_0(raw):
    """(tiles, SB, 1088) words: codes [c][row][t][h][i], scales of pairs of runs [row][4]."""
    if raw.shape[1] % 272:
        raw = torch.nn.functional.pad(raw, (0, 272 - raw.shape[1] % 272))
    return (_in_chunks(_pack_q8_0, raw, 272),)


# ------------------------------------------------------------------------------------ activations

S_HALVES = 2048 + 128


def activate(kind, x):
    """x (T, K) float16 as the B operand that a kind of weights needs: (T / 8, SB, ...) halves.

    To be done by the kernel that makes the operand. Q4_K: order S, with sums of runs of 32 as a
    high and a low half. Others: order R.
    """
    count, k = x.shape
    if k % 256:
        x = torch.nn.functional.pad(x, (0, 256 - k % 256))
    blocks = x.shape[1] // 256
    if kind == "Q4_K":
        v = x.reshape(count // 8, 8, blocks, 4, 2, 8, 2, 2)  # tile g SB t h j i x
        out = v.permute(0, 2, 5, 1, 3, 6, 4, 7).reshape(count // 8, blocks, 2048)  # ... j g t i h x
        runs = x.reshape(count, blocks, 8, 32).float()
        while runs.shape[-1] > 1:  # halves are added: an order that no shape changes
            half = runs.shape[-1] // 2
            runs = runs[..., :half] + runs[..., half:]
        sums = runs[..., 0]  # (T, SB, 8)
        high = sums.half()
        low = (sums - high.float()).half()
        s = torch.stack([high, low], -2).reshape(count // 8, 8, blocks, 2, 4, 2)  # tile g SB hl t b
        s = s.permute(0, 2, 1, 4, 3, 5).reshape(count // 8, blocks, 128)  # tile SB g t hl b
        return torch.cat([out, s], -1).contiguous()
    v = x.reshape(count // 8, 8, blocks, 8, 2, 4, 2, 2)  # tile g SB s2 sp t h b
    return v.permute(0, 2, 3, 1, 5, 4, 6, 7).reshape(count // 8, blocks, 2048).contiguous()


# ------------------------------------------------------------------------------------ layouts
# All tensors have a first axis: the P parts of K that a program's warps compute side by side. Warp
# number p * W + w computes part p of rows 16 w to 16 w + 15.


@constexpr_function
def _bits(n):
    return n.bit_length() - 1


@constexpr_function
def _reps(begin, end):
    out = []
    while begin < end:
        out.append([0, begin, 0])
        begin *= 2
    return out


@constexpr_function
def mma_layout(P, W):
    return gl.NVMMADistributedLayout([2, 0], [P, W, 1], [1, 16, 8])


@constexpr_function
def row_layout(P, rows, W, regs, lane, width):
    """(P, rows, width): registers along the last axis, lanes t at `lane`, rows as in operand A."""
    return gl.DistributedLinearLayout(
        [[0, 0, r] for r in regs] + [[0, 8, 0]] + _reps(16 * W, rows),
        [[0, 0, lane], [0, 0, 2 * lane], [0, 1, 0], [0, 2, 0], [0, 4, 0]],
        [[0, 16 << i, 0] for i in range(_bits(W))] + [[1 << i, 0, 0] for i in range(_bits(P))],
        [],
        [P, rows, width],
    )


@constexpr_function
def whole_layout(P, rows, W, width):
    """(P, rows, width): each of a row's four threads has all of it."""
    return gl.DistributedLinearLayout(
        [[0, 0, 1 << i] for i in range(_bits(width))] + [[0, 8, 0]] + _reps(16 * W, rows),
        [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 2, 0], [0, 4, 0]],
        [[0, 16 << i, 0] for i in range(_bits(W))] + [[1 << i, 0, 0] for i in range(_bits(P))],
        [],
        [P, rows, width],
    )


@constexpr_function
def column_layout(P, n, W, regs, lane, width):
    """(P, n, width): tokens as columns of operand B; all warps of a part read the same."""
    return gl.DistributedLinearLayout(
        [[0, 0, r] for r in regs] + _reps(8, n),
        [[0, 0, lane], [0, 0, 2 * lane], [0, 1, 0], [0, 2, 0], [0, 4, 0]],
        [[0, 0, 0]] * _bits(W) + [[1 << i, 0, 0] for i in range(_bits(P))],
        [],
        [P, n, width],
    )


@gluon.jit
def _axis(axis: gl.constexpr, size: gl.constexpr, layout: gl.constexpr):
    """0, 1, ... along an axis of tensors with this layout of three axes."""
    # the axes that are sliced away, the later one first
    late: gl.constexpr = 1 if axis == 2 else 2
    early: gl.constexpr = 1 if axis == 0 else 0
    v = gl.arange(0, size, gl.SliceLayout(early, gl.SliceLayout(late, layout)))
    return gl.expand_dims(gl.expand_dims(v, early), late)


# ------------------------------------------------------------------------------------ Q4_K

_SMALL = gl.constexpr("""
{
.reg .b32 a, b, m;
mov.b32 m, 0xE400E400;
prmt.b32 a, $2, 0x64646464, 0x4140;
prmt.b32 b, $2, 0x64646464, 0x4342;
add.rn.f16x2 $0, a, m;
add.rn.f16x2 $1, b, m;
}
""")  # s and minima: 1024 + byte - 1024

_MULTIPLES = gl.constexpr("""
{
.reg .b32 a, b, c;
mov.b32 a, 0xE400E400;
mov.b32 b, 0x2C002C00;
mov.b32 c, 0xD400D400;
mul.rn.f16x2 $0, $3, a;
mul.rn.f16x2 $1, $3, b;
mul.rn.f16x2 $2, $3, c;
}
""")  # -1024, 1/16, -64

_Q4_WORD = """
{
.reg .b32 w, a, b, c, d;
lop3.b32 a, $in, 0x000f000f, 0x64006400, 0xEA;
lop3.b32 b, $in, 0x00f000f0, 0x64006400, 0xEA;
shr.u32 w, $in, 8;
lop3.b32 c, w, 0x000f000f, 0x64006400, 0xEA;
lop3.b32 d, w, 0x00f000f0, 0x64006400, 0xEA;
fma.rn.f16x2 $o0, a, $10, $11;
fma.rn.f16x2 $o1, b, $12, $13;
fma.rn.f16x2 $o2, c, $10, $11;
fma.rn.f16x2 $o3, d, $12, $13;
}
"""


def _words(text, number, first_in):
    out = ""
    for word in range(number):
        one = text.replace("$in", f"${first_in + word}")
        for o in range(4):
            one = one.replace(f"$o{o}", f"${4 * word + o}")
        out += one
    return out


_Q4 = gl.constexpr(_words(_Q4_WORD, 2, 8))
_Q4_CONSTRAINTS = gl.constexpr("=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r,r,r,r")
_F16x8 = gl.constexpr([gl.float16] * 8)


@gluon.jit
def _fetch(at, mask, CG: gl.constexpr):
    if CG == "first":
        return gl.load(at, mask=mask, eviction_policy="evict_first")
    else:
        return gl.load(at, mask=mask, cache_modifier=CG)


@gluon.jit
def _wait():
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _launch_next():
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def _q4_load(
    w, tile, leap, sb, ok, P: gl.constexpr, ROWS: gl.constexpr, W: gl.constexpr, CG: gl.constexpr
):
    """`tile`: words of a tile of rows; `leap`: superblocks between parts."""
    mma: gl.constexpr = mma_layout(P, W)
    a: gl.constexpr = gl.DotOperandLayout(0, mma, 4)
    p: gl.constexpr = row_layout(P, ROWS, W, [], 1, 4)
    d: gl.constexpr = gl.SliceLayout(2, mma)
    w = w + sb * 592
    r, k = _axis(1, ROWS, a), _axis(2, 32, a)
    at = _axis(0, P, a) * (leap * 592) + (r // 16 * tile + r % 16 * 16) + (k // 16 * 256 + k % 16)
    codes = _fetch(w + at, gl.full([P, ROWS, 32], ok, gl.int1, a), CG)
    r = _axis(1, ROWS, p)
    at = _axis(0, P, p) * (leap * 592) + (r // 16 * tile + r % 16 * 4 + 512) + _axis(2, 4, p)
    small = _fetch(w + at, gl.full([P, ROWS, 4], ok, gl.int1, p), CG)
    r = gl.arange(0, ROWS, gl.SliceLayout(0, d))
    at = (
        gl.arange(0, P, gl.SliceLayout(1, d))[:, None] * (leap * 592)
        + (r // 16 * tile + r % 16 + 576)[None, :]
    )
    scale = _fetch(w + at, gl.full([P, ROWS], ok, gl.int1, d), CG)
    return codes, small, scale


@gluon.jit
def _as_codes(s, P: gl.constexpr, ROWS: gl.constexpr, a: gl.constexpr):
    """(P, rows, runs) of numbers of a run, for each word of it."""
    s = s.reshape([P, ROWS, 4, 2]).permute([0, 1, 3, 2])
    s = gl.join(s, s)
    s = gl.join(s, s).reshape([P, ROWS, 32])
    return gl.convert_layout(s, a)


@gluon.jit
def _columns(
    first,
    used,
    blocks,
    leap,
    SIZE: gl.constexpr,
    EACH: gl.constexpr,
    P: gl.constexpr,
    N: gl.constexpr,
    layout: gl.constexpr,
):
    """Where each column's halves begin. Columns behind the last token read the last token."""
    token = gl.minimum(first + _axis(1, N, layout), used - 1)
    return _axis(0, P, layout) * (leap * SIZE) + (token // 8 * (blocks * SIZE) + token % 8 * EACH)


@gluon.jit
def _scaled(acc, scale, total):
    return gl.fma(acc, gl.expand_dims(scale, 2).broadcast_to(acc.shape), total)


@gluon.jit
def _q4_step(
    total,
    codes,
    small,
    scale,
    x,
    first,
    used,
    blocks,
    leap,
    sb,
    P: gl.constexpr,
    ROWS: gl.constexpr,
    N: gl.constexpr,
    W: gl.constexpr,
):
    """total + one superblock."""
    mma: gl.constexpr = mma_layout(P, W)
    a: gl.constexpr = gl.DotOperandLayout(0, mma, 4)
    a2: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    b: gl.constexpr = gl.DotOperandLayout(1, mma, 4)
    b2: gl.constexpr = gl.DotOperandLayout(1, mma, 2)
    xl: gl.constexpr = column_layout(P, N, W, [1, 2, 4], 8, 32)
    sl: gl.constexpr = column_layout(P, N, W, [1, 2], 4, 16)
    both = gl.join(small, small).reshape([P, ROWS, 8])
    s, m = gl.inline_asm_elementwise(
        _SMALL, "=&r,=&r,r,r", [both], dtype=[gl.float16, gl.float16], is_pure=True, pack=2
    )
    s1, s2, s3 = gl.inline_asm_elementwise(
        _MULTIPLES,
        "=&r,=&r,=&r,r",
        [s],
        dtype=[gl.float16, gl.float16, gl.float16],
        is_pure=True,
        pack=2,
    )
    halves = gl.inline_asm_elementwise(
        _Q4,
        _Q4_CONSTRAINTS,
        [
            codes,
            _as_codes(s, P, ROWS, a),
            _as_codes(s1, P, ROWS, a),
            _as_codes(s2, P, ROWS, a),
            _as_codes(s3, P, ROWS, a),
        ],
        dtype=_F16x8,
        is_pure=True,
        pack=2,
    )
    x = x + sb * 2176
    at = _columns(first, used, blocks, leap, 2176, 32, P, N, xl) + _axis(2, 32, xl)
    acc = gl.zeros([P, ROWS, N], gl.float32, mma)
    for j in gl.static_range(8):
        v = gl.load(x + j * 256 + at)
        v = v.reshape([P, N, 4, 2, 2, 2]).permute([0, 4, 2, 3, 5, 1]).reshape([P, 32, N])
        acc = mma_v2(halves[j], gl.convert_layout(v, b), acc)
    at = _columns(first, used, blocks, leap, 2176, 16, P, N, sl) + _axis(2, 16, sl)
    v = gl.load(x + 2048 + at)
    v = v.reshape([P, N, 4, 2, 2]).permute([0, 3, 2, 4, 1]).reshape([P, 16, N])
    mm = gl.join(m, m).permute([0, 1, 3, 2]).reshape([P, ROWS, 16])
    least = gl.zeros([P, ROWS, N], gl.float32, mma)
    least = mma_v2(gl.convert_layout(mm, a2), gl.convert_layout(v, b2), least)
    d = (scale & 0xFFFF).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    dmin = (scale >> 16).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
    return _scaled(least, -dmin, _scaled(acc, d, total))


# ------------------------------------------------------------------------------------ order R

_Q8_BYTES = gl.constexpr("""
{
.reg .b32 a, b, c, d, m;
mov.b32 m, 0xE480E480;
prmt.b32 a, $4, 0x64646464, 0x4140;
prmt.b32 b, $4, 0x64646464, 0x4342;
prmt.b32 c, $5, 0x64646464, 0x4140;
prmt.b32 d, $5, 0x64646464, 0x4342;
add.rn.f16x2 $0, a, m;
add.rn.f16x2 $1, b, m;
add.rn.f16x2 $2, c, m;
add.rn.f16x2 $3, d, m;
}
""")  # 1024 + (code + 128) - 1152
_F16x4 = gl.constexpr([gl.float16] * 4)


def _q6_text():
    out = "{\n.reg .b32 w, g, a, m, n, q;\n"
    out += "mov.b32 m, 0xE420E420;\nmov.b32 n, 0xD600D600;\nmov.b32 q, 0x2C002C00;\n"
    shifts = ("shl.b32 g, $10, 4", "shl.b32 g, $10, 2", "shr.u32 g, $10, 4", "shr.u32 g, $10, 6")
    for pair in range(4):
        word = f"${8 + pair // 2}"
        out += f"{shifts[pair]};\n"
        if pair % 2:
            out += f"shr.u32 w, {word}, 8;\n"
            word = "w"
        one, two = f"${2 * pair}", f"${2 * pair + 1}"
        out += f"lop3.b32 a, {word}, 0x000f000f, 0x64006400, 0xEA;\n"
        out += "lop3.b32 a, g, 0x00300030, a, 0xEA;\n"
        out += f"add.rn.f16x2 {one}, a, m;\n"
        out += f"lop3.b32 a, {word}, 0x00f000f0, 0x64006400, 0xEA;\n"
        out += "lop3.b32 a, g, 0x03000300, a, 0xEA;\n"
        out += f"fma.rn.f16x2 {two}, a, q, n;\n"
    return out + "}\n"


_Q6 = gl.constexpr(_q6_text())
_Q6_CONSTRAINTS = gl.constexpr("=&r,=&r,=&r,=&r,=&r,=&r,=&r,=&r,r,r,r,r")
_BYTES = gl.constexpr("""
{
.reg .b32 a, b, c, d;
prmt.b32 a, $4, 0x4B000000, 0x7440;
prmt.b32 b, $4, 0x4B000000, 0x7441;
prmt.b32 c, $4, 0x4B000000, 0x7442;
prmt.b32 d, $4, 0x4B000000, 0x7443;
sub.rn.f32 $0, a, 0f4B000080;
sub.rn.f32 $1, b, 0f4B000080;
sub.rn.f32 $2, c, 0f4B000080;
sub.rn.f32 $3, d, 0f4B000080;
}
""")  # 2**23 + (scale + 128) - (2**23 + 128)
_F32x4 = gl.constexpr([gl.float32] * 4)


@gluon.jit
def _words_of(
    w,
    tile,
    leap,
    ok,
    base: gl.constexpr,
    EACH: gl.constexpr,
    P: gl.constexpr,
    ROWS: gl.constexpr,
    layout: gl.constexpr,
    CG: gl.constexpr,
):
    """(P, rows, EACH) words: those of a row are neighbours, those of rows too."""
    r = _axis(1, ROWS, layout)
    at = (
        _axis(0, P, layout) * leap
        + (r // 16 * tile + r % 16 * EACH + base)
        + _axis(2, EACH, layout)
    )
    return _fetch(w + at, gl.full([P, ROWS, EACH], ok, gl.int1, layout), CG)


@gluon.jit
def _r_load(
    w,
    tile,
    leap,
    sb,
    ok,
    KIND: gl.constexpr,
    P: gl.constexpr,
    ROWS: gl.constexpr,
    W: gl.constexpr,
    CG: gl.constexpr,
):
    """Codes, scales and d of a superblock."""
    four: gl.constexpr = row_layout(P, ROWS, W, [1, 2], 4, 16)
    small: gl.constexpr = whole_layout(P, ROWS, W, 4)
    if KIND == "Q8_0":
        w = w + sb * 1088
        codes = ()
        for c in gl.static_range(4):
            codes = codes + (_words_of(w, tile, leap * 1088, ok, c * 256, 16, P, ROWS, four, CG),)
        scales = _words_of(w, tile, leap * 1088, ok, 1024, 4, P, ROWS, small, CG)
        return codes, scales, scales
    else:
        w = w + sb * 848
        codes = ()
        for c in gl.static_range(3):
            codes = codes + (_words_of(w, tile, leap * 848, ok, c * 256, 16, P, ROWS, four, CG),)
        scales = _words_of(w, tile, leap * 848, ok, 768, 4, P, ROWS, small, CG)
        dl: gl.constexpr = gl.SliceLayout(2, mma_layout(P, W))
        r = gl.arange(0, ROWS, gl.SliceLayout(0, dl))
        at = (
            gl.arange(0, P, gl.SliceLayout(1, dl))[:, None] * (leap * 848)
            + (r // 16 * tile + r % 16 + 832)[None, :]
        )
        d = _fetch(w + at, gl.full([P, ROWS], ok, gl.int1, dl), CG)
        return codes, scales, d.to(gl.float32, bitcast=True)


@gluon.jit
def _four(v, P: gl.constexpr, ROWS: gl.constexpr, layout: gl.constexpr):
    """The four columns of (P, rows, 4)."""
    even, odd = gl.split(v.reshape([P, ROWS, 2, 2]))
    a, c = gl.split(even)
    b, d = gl.split(odd)
    return (
        gl.convert_layout(a, layout),
        gl.convert_layout(b, layout),
        gl.convert_layout(c, layout),
        gl.convert_layout(d, layout),
    )


@gluon.jit
def _as_a(v, P: gl.constexpr, ROWS: gl.constexpr, layout: gl.constexpr):
    v = v.reshape([P, ROWS, 4, 2, 2]).permute([0, 1, 3, 2, 4]).reshape([P, ROWS, 16])
    return gl.convert_layout(v, layout)


@gluon.jit
def _r_step(
    total,
    codes,
    scales,
    d,
    x,
    first,
    used,
    blocks,
    leap,
    sb,
    KIND: gl.constexpr,
    P: gl.constexpr,
    ROWS: gl.constexpr,
    N: gl.constexpr,
    W: gl.constexpr,
):
    mma: gl.constexpr = mma_layout(P, W)
    a: gl.constexpr = gl.DotOperandLayout(0, mma, 2)
    b: gl.constexpr = gl.DotOperandLayout(1, mma, 2)
    rl: gl.constexpr = gl.SliceLayout(2, mma)
    xl: gl.constexpr = column_layout(P, N, W, [1, 2, 4], 8, 32)
    x = x + sb * 2048
    at = _columns(first, used, blocks, leap, 2048, 32, P, N, xl) + _axis(2, 32, xl)
    halves = ()
    factors = ()
    words = _four(scales, P, ROWS, rl)
    if KIND == "Q8_0":
        for c in gl.static_range(4):
            halves = halves + gl.inline_asm_elementwise(
                _Q8_BYTES, "=&r,=&r,=&r,=&r,r,r", [codes[c]], dtype=_F16x4, is_pure=True, pack=2
            )
            word = words[c]
            one = (word & 0xFFFF).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
            two = (word >> 16).to(gl.int16).to(gl.float16, bitcast=True).to(gl.float32)
            factors = factors + (one, two)
    else:
        upper = gl.split(codes[2].reshape([P, ROWS, 4, 2, 2]).permute([0, 1, 2, 4, 3]))
        for c in gl.static_range(2):
            both = gl.join(upper[c], upper[c]).reshape([P, ROWS, 16])
            both = gl.convert_layout(both, row_layout(P, ROWS, W, [1, 2], 4, 16))
            halves = halves + gl.inline_asm_elementwise(
                _Q6, _Q6_CONSTRAINTS, [codes[c], both], dtype=_F16x8, is_pure=True, pack=2
            )
        for c in gl.static_range(4):
            factors = factors + gl.inline_asm_elementwise(
                _BYTES, "=&r,=&r,=&r,=&r,r", [words[c]], dtype=_F32x4, is_pure=True, pack=1
            )
    for s2 in gl.static_range(8):
        v = gl.load(x + s2 * 256 + at)
        v = v.reshape([P, N, 4, 2, 2, 2]).permute([0, 4, 2, 5, 1, 3])
        one, two = gl.split(v)
        one = gl.convert_layout(one.reshape([P, 16, N]), b)
        two = gl.convert_layout(two.reshape([P, 16, N]), b)
        acc = gl.zeros([P, ROWS, N], gl.float32, mma)
        acc = mma_v2(_as_a(halves[2 * s2], P, ROWS, a), one, acc)
        if KIND == "Q8_0":
            acc = mma_v2(_as_a(halves[2 * s2 + 1], P, ROWS, a), two, acc)
            total = _scaled(acc, factors[s2], total)
        else:
            total = _scaled(acc, factors[2 * s2] * d, total)
            acc = gl.zeros([P, ROWS, N], gl.float32, mma)
            acc = mma_v2(_as_a(halves[2 * s2 + 1], P, ROWS, a), two, acc)
            total = _scaled(acc, factors[2 * s2 + 1] * d, total)
    return total


@gluon.jit
def _load(
    w,
    tile,
    leap,
    sb,
    ok,
    KIND: gl.constexpr,
    P: gl.constexpr,
    ROWS: gl.constexpr,
    W: gl.constexpr,
    CG: gl.constexpr,
):
    if KIND == "Q4_K":
        return _q4_load(w, tile, leap, sb, ok, P, ROWS, W, CG)
    else:
        return _r_load(w, tile, leap, sb, ok, KIND, P, ROWS, W, CG)


@gluon.jit
def _step(
    total,
    taken,
    x,
    first,
    used,
    blocks,
    leap,
    sb,
    KIND: gl.constexpr,
    P: gl.constexpr,
    ROWS: gl.constexpr,
    N: gl.constexpr,
    W: gl.constexpr,
):
    if KIND == "Q4_K":
        return _q4_step(
            total, taken[0], taken[1], taken[2], x, first, used, blocks, leap, sb, P, ROWS, N, W
        )
    else:
        return _r_step(
            total,
            taken[0],
            taken[1],
            taken[2],
            x,
            first,
            used,
            blocks,
            leap,
            sb,
            KIND,
            P,
            ROWS,
            N,
            W,
        )


@gluon.jit
def _part(
    w,
    tile,
    x,
    first,
    used,
    blocks,
    begin,
    count,
    KIND: gl.constexpr,
    P: gl.constexpr,
    ROWS: gl.constexpr,
    N: gl.constexpr,
    W: gl.constexpr,
    STAGES: gl.constexpr,
    CG: gl.constexpr,
    PDL: gl.constexpr,
):
    """(P, ROWS, N): the sums of P neighbouring parts of `count` superblocks, a multiple of STAGES."""
    total = gl.zeros([P, ROWS, N], gl.float32, mma_layout(P, W))
    taken = ()
    for s in gl.static_range(STAGES):
        taken = taken + (_load(w, tile, count, begin + s, True, KIND, P, ROWS, W, CG),)
    if PDL:
        _wait()  # the weights are there before the kernel before this one ends
    for sb in range(begin, begin + count, STAGES):
        later = ()
        for s in gl.static_range(STAGES):
            ok = sb + s + STAGES < begin + count
            total = _step(
                total, taken[s], x, first, used, blocks, count, sb + s, KIND, P, ROWS, N, W
            )
            later = later + (_load(w, tile, count, sb + s + STAGES, ok, KIND, P, ROWS, W, CG),)
        taken = later
    return total


@gluon.jit(do_not_specialize=["used", "rows", "blocks", "part_blocks", "parts"])
def _multiply(
    y,
    w,
    x,
    factors,
    scratch,
    counters,
    used,
    rows,
    blocks,
    part_blocks,
    parts,
    KIND: gl.constexpr,
    P: gl.constexpr,
    ROWS: gl.constexpr,
    N: gl.constexpr,
    W: gl.constexpr,
    STAGES: gl.constexpr,
    MODE: gl.constexpr,
    CG: gl.constexpr,
    PDL: gl.constexpr,
):
    """Grid: row blocks, parts of K (MODE "split"), tiles of N tokens.

    MODE "warps": P is the number of parts, and each has warps of its own. "inner": one part after
    another. "one": there is one part.
    """
    mma: gl.constexpr = mma_layout(P, W)
    if PDL:
        _launch_next()
    block, first = gl.program_id(0), gl.program_id(2) * N
    # The last block begins earlier, in rows of the block before, so that no tile is missing.
    start = gl.minimum(block * ROWS, (rows + 15) // 16 * 16 - ROWS)
    size: gl.constexpr = 592 if KIND == "Q4_K" else (848 if KIND == "Q6_K" else 1088)
    tile = blocks * size
    w += (start // 16).to(gl.int64) * tile
    if MODE == "split":
        part = gl.program_id(1)
        total = _part(
            w,
            tile,
            x,
            first,
            used,
            blocks,
            part * part_blocks,
            part_blocks,
            KIND,
            P,
            ROWS,
            N,
            W,
            STAGES,
            CG,
            PDL,
        )
    elif MODE == "inner":
        total = gl.zeros([P, ROWS, N], gl.float32, mma)
        for part in range(parts):
            total += _part(
                w,
                tile,
                x,
                first,
                used,
                blocks,
                part * part_blocks,
                part_blocks,
                KIND,
                P,
                ROWS,
                N,
                W,
                STAGES,
                CG,
                PDL,
            )
    else:
        total = _part(
            w, tile, x, first, used, blocks, 0, part_blocks, KIND, P, ROWS, N, W, STAGES, CG, PDL
        )
    if MODE == "warps":
        flat: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [2, 1, 0])
        threads: gl.constexpr = P * W
        own: gl.constexpr = gl.BlockedLayout([1, 1, 1], [1, 2, 16], [1, threads, 1], [2, 1, 0])
        shared = gl.allocate_shared_memory(gl.float32, [P, N, ROWS], flat, total.permute([0, 2, 1]))
        gl.thread_barrier()
        total = gl.zeros([1, N, ROWS], gl.float32, own)
        for part in gl.static_range(P):
            total += shared.slice(part, 1, 0).load(own)
        row, token = start + _axis(2, ROWS, own), first + _axis(1, N, own)
        at = token * rows + row
        mask = (token < used) & (row < rows)
        total = total * gl.load(factors + token, mask=token < used, other=0.0)
        gl.store(y + at, total, mask=mask)
    else:
        row, token = start + _axis(1, ROWS, mma), first + _axis(2, N, mma)
        at = token * rows + row + _axis(0, P, mma)
        mask = (token < used) & (row < rows)
        if MODE == "split":
            part = gl.program_id(1)
            own = scratch + at
            step = used * rows
            gl.store(own + part * step, total, mask=mask)
            gl.thread_barrier()
            counter = counters + gl.program_id(2) * gl.num_programs(0) + block
            before = gl.atomic_add(counter, 1, sem="acq_rel", scope="gpu")
            if before == parts - 1:
                total = gl.zeros([P, ROWS, N], gl.float32, mma)
                for other in range(parts):
                    total += gl.load(own + other * step, mask=mask, other=0.0, cache_modifier=".cg")
                total = total * gl.load(factors + token, mask=token < used, other=0.0)
                gl.store(y + at, total, mask=mask)
                gl.store(counter, 0)
        else:
            total = total * gl.load(factors + token, mask=token < used, other=0.0)
            gl.store(y + at, total, mask=mask)


# ------------------------------------------------------------------------------------ launch

WORDS = {"Q4_K": Q4_WORDS, "Q6_K": Q6_WORDS, "Q8_0": Q8_WORDS}
_kept = {}


def parts_of(rows, blocks, warps=1536):
    """Parts of K. They are part of the chain, so they follow from the shape alone."""
    wish = max(1, round(warps / max(1, -(-rows // 16))))
    return max(p for p in range(1, wish + 1) if blocks % p == 0 and (p == 1 or blocks // p >= 2))


def multiply(
    kind,
    packed,
    x,
    factors,
    *,
    rows=None,
    used=None,
    operand=None,
    y=None,
    parts=None,
    N=None,
    ROWS=64,
    W=4,
    STAGES=1,
    mode=None,
    CG=".cg",
    maxnreg=None,
    pdl=False,
):
    """x (T, K) float16 times the matrix: (T, rows) float32.

    Args:
        rows: of the matrix; None: as many as there are in whole tiles of 16.
        used: tokens that count; the others' results are not written.
        operand: `activate(kind, x)` if there already.
        parts: of K; changes bits.
        N, ROWS, W, STAGES, mode, CG, maxnreg, pdl: change no bits. mode: "split" (parts are programs, the
            last one adds), "warps" (parts are warps of a program; P times W of them) or "inner" (a
            program computes all parts).
    """
    (w,) = packed
    tiles, blocks, _ = w.shape
    rows = rows or tiles * 16
    used = used or len(x)
    N = N or (8 if used <= 8 else 16)
    operand = activate(kind, x) if operand is None else operand
    parts = parts or parts_of(rows, blocks)
    part = blocks // parts
    mode = "one" if parts == 1 else mode or ("split" if used <= 64 else "inner")
    assert mode != "warps" or parts & parts - 1 == 0
    while ROWS > 16 * tiles:
        ROWS //= 2
    W = min(W, ROWS // 16)
    P = parts if mode == "warps" else 1
    while part % STAGES:
        STAGES //= 2
    y = torch.empty(len(x), rows, device=x.device) if y is None else y
    split = mode == "split"
    columns, height = triton.cdiv(used, N), triton.cdiv(rows, ROWS)
    key = x.device
    if key not in _kept:
        _kept[key] = [
            torch.empty(0, device=key),
            torch.zeros(1 << 16, dtype=torch.int32, device=key),
        ]
    scratch, counters = _kept[key]
    if split and scratch.numel() < parts * used * rows:
        scratch = _kept[key][0] = torch.empty(parts * used * rows, device=key)
    _multiply[(height, parts if split else 1, columns)](
        y,
        w,
        operand,
        factors,
        scratch if split else y,
        counters,
        used,
        rows,
        blocks,
        part,
        parts,
        KIND=kind,
        P=P,
        ROWS=ROWS,
        N=N,
        W=W,
        STAGES=STAGES,
        MODE=mode,
        CG=CG,
        PDL=pdl,
        launch_pdl=pdl,
        num_warps=P * W,
        **({"maxnreg": maxnreg} if maxnreg else {}),
    )
    return y


# ------------------------------------------------------------------------------------ checks

PACK = {"Q4_K": pack_q4_k, "Q6_K": pack_q6_k, "Q8_0": pack_q8_0}
BYTES = {"Q4_K": (256, 144), "Q6_K": (256, 210), "Q8_0": (32, 34)}


def random_blocks(kind, rows, k, seed=0):
    """Random blocks (rows, bytes) with finite scales."""
    rng = np.random.default_rng(seed)
    elements, size = BYTES[kind]
    raw = rng.integers(0, 256, (rows * (k // elements), size), np.uint8)
    for at in {"Q4_K": (0, 2), "Q6_K": (208,), "Q8_0": (0,)}[kind]:
        d = (rng.standard_normal(len(raw)) * 0.01).astype(np.float16)
        raw[:, at : at + 2] = d[:, None].view(np.uint8)
    return raw.reshape(rows, -1)


def decoded(kind, raw):
    from heddle.weights import quants

    elements, size = BYTES[kind]
    decode = {"Q4_K": quants.q4_k, "Q6_K": quants.q6_k, "Q8_0": quants.q8_0}[kind]
    return decode(raw.reshape(-1, size)).reshape(len(raw), -1).astype(np.float64)


def checked_options(parts, quick):
    """Options of `multiply` that must give the same bits."""
    out = [
        dict(N=16, mode="inner"),
        dict(N=8, mode="inner"),
        dict(N=64, mode="inner"),
        dict(N=16, mode="split"),
        dict(N=32, ROWS=128, mode="split"),
    ]
    if parts & parts - 1 == 0:
        out += [dict(N=16, mode="warps", ROWS=16), dict(N=8, mode="warps", ROWS=16)]
    if not quick:
        out += [
            dict(N=32),
            dict(N=16, ROWS=32, W=2, STAGES=2),
            dict(N=128, ROWS=64),
            dict(N=16, ROWS=16),
            dict(N=32, ROWS=128, mode="inner"),
        ]
        if parts & parts - 1 == 0:
            out += [
                dict(N=16, mode="warps", ROWS=32),
                dict(N=32, mode="warps", ROWS=32),
                dict(N=16, mode="warps", ROWS=64, W=1),
            ]
    return out


def check(device=None, kinds=("Q4_K", "Q6_K", "Q8_0"), quick=None):
    """Compares with float64, and bits alone with those in company. Returns lines; raises if wrong."""
    device = device or torch.device("cuda")
    quick = device.type == "cuda" if quick is None else quick
    lines = []
    big = device.type == "cuda"
    shapes = [(96, 512), (72, 1024)] if not big else [(4096, 4096), (1000, 12288)]
    for kind in kinds:
        for rows, k in shapes + ([(64, 288)] if kind == "Q8_0" and not big else []):
            raw = random_blocks(kind, rows, k)
            packed = PACK[kind](torch.from_numpy(raw).to(device))
            torch.manual_seed(1)
            x = torch.randn(128 if big else 48, k).to(torch.float16).to(device)
            factors = (2.0 ** torch.randint(-3, 4, (len(x),))).float().to(device)
            blocks = -(-k // 256)
            weights = torch.from_numpy(decoded(kind, raw)).to(device)
            scale = factors.double()[:, None]
            wanted = x.double() @ weights.T * scale
            size = x.double().abs() @ weights.abs().T * scale
            for parts in sorted(
                {1, 2 if not big else 4, blocks if not big else 4} if blocks % 2 == 0 else {1}
            ):
                run = lambda t, **o: multiply(kind, packed, t[0], t[1], rows=rows, parts=parts, **o)
                base = run((x, factors), N=16, mode="inner")
                worst = ((base.double() - wanted).abs() / size).max().item()
                lines.append(
                    f"{kind} {rows}x{k} parts {parts}: error {worst:.2e} of the absolute sum"
                )
                assert worst < 3e-6, lines
                alone = x[16:32].contiguous(), factors[16:32].contiguous()
                moved = torch.roll(x, 5, 0), torch.roll(factors, 5, 0)
                for options in checked_options(parts, quick):
                    what = kind, rows, k, parts, options
                    for _ in range(3 if big else 1):
                        assert torch.equal(run((x, factors), **options), base), what
                    assert torch.equal(run(alone, **options), base[16:32]), ("alone", *what)
                    assert torch.equal(run(moved, **options), torch.roll(base, 5, 0)), (
                        "places",
                        *what,
                    )
                y = run(alone, used=3)
                assert torch.equal(y[:3], base[16:19]), "used"
    return lines


def shapes_for_timing():
    """(name, rows, K) of Qwen3-8B's matrices: each of 36 layers, and the head once."""
    return [
        ("qkv", 6144, 4096),
        ("o", 4096, 4096),
        ("gate_up", 24576, 4096),
        ("down", 4096, 12288),
        ("head", 151936, 4096),
    ]


def main():
    """Check all kinds, then time the matrices of Qwen3-8B's shape."""
    from gpu_kernels import CACHE, seconds

    for line in check():
        print(line)
    for kind in PACK:
        elements, size = BYTES[kind]
        for name, rows, k in shapes_for_timing():
            raw = torch.randint(0, 255, (rows, k // elements * size), dtype=torch.uint8).cuda()
            packed = PACK[kind](raw)
            copies = [
                packed,
                *(tuple(one.clone() for one in packed) for _ in range(CACHE // raw.nbytes + 1)),
            ]
            for tokens in (16, 64):
                x, factors = torch.randn(tokens, k).half().cuda(), torch.ones(tokens).cuda()
                operand = activate(kind, x)
                works = [
                    (
                        lambda one=one: multiply(
                            kind, one, x, factors, rows=rows, operand=operand, N=tokens
                        )
                    )
                    for one in copies
                ]
                time = seconds(works)
                rate = raw.nbytes / time / 1e12
                print(
                    f"{kind}, {tokens} tokens, {name}: {1e6 * time:.1f} us, {rate:.2f} TB/s",
                    flush=True,
                )


if __name__ == "__main__":
    with torch.inference_mode():
        main()
