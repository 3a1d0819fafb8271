"""The CUDA source of the packing kernel.

One source serves all pairs of dtypes: SOURCE and TARGET are types below, given as macros. It needs
no header, so that NVRTC compiles it wherever there is a driver, and it compiles as C++ for the host
too, given the three conversions of float16 that are instructions on a GPU.
"""

SOURCE = r"""
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef float f32;
typedef double f64;
struct f16 { u16 bits; };
struct bf16 { u16 bits; };

#ifdef __CUDACC__
__device__ inline f32 widen(f16 x)
{
    f32 y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}
__device__ inline void narrow(f32 x, f16& y)
{
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
}
__device__ inline void narrow(f64 x, f16& y)
{
    asm("cvt.rn.f16.f64 %0, %1;" : "=h"(y.bits) : "d"(x));
}
#endif

union Bits { f32 value; u32 bits; };

__device__ inline f32 widen(bf16 x)
{
    Bits y;
    y.bits = u32(x.bits) << 16;
    return y.value;
}
__device__ inline f32 widen(f32 x) { return x; }
__device__ inline f64 widen(f64 x) { return x; }

// By hand: the instruction is there from sm_80 on only. Half of the last place that stays, less one
// if that is even already, carries into it just where rounding to nearest even goes up.
__device__ inline void narrow(f32 x, bf16& y)
{
    Bits in;
    in.value = x;
    u32 nearest = (in.bits + 0x7fffu + ((in.bits >> 16) & 1u)) >> 16;
    u32 quiet = (in.bits >> 16) | 0x40u;
    y.bits = u16(x != x ? quiet : nearest);
}
// Through float32, as other libraries have it.
__device__ inline void narrow(f64 x, bf16& y) { narrow(f32(x), y); }
__device__ inline void narrow(f32 x, f32& y) { y = x; }
__device__ inline void narrow(f64 x, f32& y) { y = f32(x); }
__device__ inline void narrow(f64 x, f64& y) { y = x; }

// COPIES: bits as they are. Otherwise NUMBER, f32 or f64, is what is reckoned in, and WIRE, if
// defined, what is rounded to first.
__device__ inline TARGET convert(SOURCE x, NUMBER scale)
{
#ifdef COPIES
    return x;
#else
#ifdef WIRE
    WIRE rounded;
    narrow(widen(x), rounded);
    NUMBER value = widen(rounded);
#else
    NUMBER value = widen(x);
#endif
    TARGET y;
    narrow(value * scale, y);
    return y;
#endif
}

// LANES elements, moved by one access: 16 bytes of the wider type, as many of the narrower. So what
// the threads of a warp move at a time is in one piece, on both sides.
template <int BYTES> struct Line;
template <> struct Line<16> { typedef uint4 type; };
template <> struct Line<8> { typedef uint2 type; };
template <> struct Line<4> { typedef u32 type; };
template <class T> union Vector { typename Line<LANES * sizeof(T)>::type line; T lanes[LANES]; };

template <class T> __device__ inline void load(Vector<T>& into, const T* from)
{
    into.line = ((const Vector<T>*)from)->line;
}

template <class T> __device__ inline void store(T* to, const Vector<T>& from)
{
    ((Vector<T>*)to)->line = from.line;
}

// Elements from the last boundary at which they can be moved so.
template <class T> __device__ inline u32 off(const T* at) { return (u64)at / sizeof(T) % LANES; }

// Elements up to the next.
template <class T> __device__ inline u32 head_of(const T* at) { return (LANES - off(at)) % LANES; }

__device__ inline void zero(TARGET* to, u32 count)
{
    Vector<TARGET> zeros = {};
    u32 head = min(head_of(to), count);
    u32 body = (count - head) / LANES;
    for (u32 i = threadIdx.x; i < body; i += THREADS) store(to + head + i * LANES, zeros);
    u32 rest = count - body * LANES;
    u32 at = threadIdx.x < head ? threadIdx.x : threadIdx.x + body * LANES;
    if (threadIdx.x < rest) to[at] = zeros.lanes[0];
}

// All loads of a thread come before its first store, so that several are in flight.
__device__ inline void copy_vectors(const SOURCE* from, TARGET* to, u32 head, u32 count,
                                    NUMBER scale)
{
    u32 body = (count - head) / LANES;
    Vector<SOURCE> in[UNROLL];
#pragma unroll
    for (int k = 0; k < UNROLL; k++) {
        u32 i = threadIdx.x + k * THREADS;
        if (i < body) load(in[k], from + head + i * LANES);
    }
    u32 rest = count - body * LANES;
    u32 at = threadIdx.x < head ? threadIdx.x : threadIdx.x + body * LANES;
    SOURCE single = {};
    if (threadIdx.x < rest) single = from[at];
#pragma unroll
    for (int k = 0; k < UNROLL; k++) {
        u32 i = threadIdx.x + k * THREADS;
        if (i >= body) break;
        Vector<TARGET> out;
#pragma unroll
        for (int lane = 0; lane < LANES; lane++)
            out.lanes[lane] = convert(in[k].lanes[lane], scale);
        store(to + head + i * LANES, out);
    }
    if (threadIdx.x < rest) to[at] = convert(single, scale);
}

__device__ inline void copy_singly(const SOURCE* from, TARGET* to, u32 count, NUMBER scale)
{
    const int DEPTH = 8;
    for (u32 begin = threadIdx.x; begin < count; begin += DEPTH * THREADS) {
        SOURCE in[DEPTH];
#pragma unroll
        for (int k = 0; k < DEPTH; k++)
            if (begin + k * THREADS < count) in[k] = from[begin + k * THREADS];
#pragma unroll
        for (int k = 0; k < DEPTH; k++)
            if (begin + k * THREADS < count) to[begin + k * THREADS] = convert(in[k], scale);
    }
}

// By value: no copy of it to the device, and nothing that must outlive the launch.
struct Table {
    u64 source[CAPACITY];  // address; 0 for zeros
    u64 begin[CAPACITY];   // in the buffer, in elements
    u32 count[CAPACITY];   // of elements
    u32 first[CAPACITY];   // tile; ascending
};

// Where it may be said, from Volta on, it keeps compilers from copying the table for each thread.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
#define WHERE_IT_IS
#else
#define WHERE_IT_IS __grid_constant__
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
pack(const WHERE_IT_IS Table table, u32 entries, u32 tiles, TARGET* buffer, f64 scale)
{
    for (u32 tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
        u32 entry = 0;
        for (u32 above = entries; above - entry > 1;) {
            u32 middle = (entry + above) / 2;
            if (table.first[middle] <= tile) entry = middle; else above = middle;
        }
        u32 skip = (tile - table.first[entry]) * TILE;
        u32 count = min(table.count[entry] - skip, u32(TILE));
        const SOURCE* from = (const SOURCE*)table.source[entry];
        TARGET* to = buffer + table.begin[entry] + skip;
        if (from == 0) {
            zero(to, count);
            continue;
        }
        from += skip;
        u32 head = min(head_of(to), count);
        if (off(from + head) == 0)
            copy_vectors(from, to, head, count, NUMBER(scale));
        else
            copy_singly(from, to, count, NUMBER(scale));
    }
}
"""
