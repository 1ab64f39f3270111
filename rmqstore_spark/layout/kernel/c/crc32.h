/* CRC-32 (zlib's polynomial) of one span: by carry-less multiplication if the processor supports
 * it, else eight bytes at a time from tables.
 *
 * The multiplication folds four 16-byte lanes at once, or sixteen where a register has 64 bytes,
 * then reduces them by Barrett's method. The constants are powers of x modulo the polynomial,
 * bit-reflected.
 */
#ifndef RMQSTORE_CRC32_H
#define RMQSTORE_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__clang__) ? __clang_major__ >= 8 : __GNUC__ >= 9)
#define CRC32_WIDE /* the compiler knows the instructions, and how to ask for them */
#endif

static uint32_t crc32_table[8][256];
static int crc32_has_clmul, crc32_has_wide;

static void crc32_prepare(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int bit = 0; bit < 8; bit++)
            c = (c >> 1) ^ (0xEDB88320u & (0u - (c & 1)));
        crc32_table[0][i] = c;
    }
    for (int t = 1; t < 8; t++)
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = crc32_table[t - 1][i];
            crc32_table[t][i] = (c >> 8) ^ crc32_table[0][c & 255];
        }
#if defined(__x86_64__)
    __builtin_cpu_init();
    crc32_has_clmul = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#if defined(CRC32_WIDE)
    crc32_has_wide = crc32_has_clmul && __builtin_cpu_supports("avx512f") &&
                     __builtin_cpu_supports("vpclmulqdq");
#endif
#endif
}

static uint32_t crc32_by_table(const uint8_t *p, size_t n, uint32_t crc)
{
    while (n >= 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        v ^= crc;
        crc = crc32_table[7][v & 255] ^ crc32_table[6][(v >> 8) & 255] ^
              crc32_table[5][(v >> 16) & 255] ^ crc32_table[4][(v >> 24) & 255] ^
              crc32_table[3][(v >> 32) & 255] ^ crc32_table[2][(v >> 40) & 255] ^
              crc32_table[1][(v >> 48) & 255] ^ crc32_table[0][v >> 56];
        p += 8;
        n -= 8;
    }
    while (n--)
        crc = (crc >> 8) ^ crc32_table[0][(crc ^ *p++) & 255];
    return crc;
}

#if defined(__x86_64__)
#include <immintrin.h>

#define CRC32_LOAD(p) _mm_loadu_si128((const __m128i *)(p))
#define CRC32_FOLD(lane, k, next)                                                     \
    _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(lane, k, 0x00),                  \
                                _mm_clmulepi64_si128(lane, k, 0x11)),                 \
                  next)

#define CRC32_BY512 0x01c6e41596, 0x0154442bd4

/* Fold the 1 to 15 bytes at p into a lane; 16 bytes of the span lie before them. The bytes of the
 * lane that they push out are folded by 128 bits, like those of a whole block. */
__attribute__((target("pclmul,sse4.1"))) static inline __m128i
crc32_fold_rest(__m128i lane, const uint8_t *p, size_t n, __m128i by128)
{
    static const uint8_t shift[48] = {
        128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
        0,   1,   2,   3,   4,   5,   6,   7,   8,   9,   10,  11,  12,  13,  14,  15,
        128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128,
    };
    __m128i out = _mm_shuffle_epi8(lane, CRC32_LOAD(shift + n));
    __m128i kept = CRC32_LOAD(shift + 16 + n);
    __m128i last = _mm_blendv_epi8(_mm_shuffle_epi8(lane, kept), CRC32_LOAD(p + n - 16), kept);
    return CRC32_FOLD(out, by128, last);
}

/* Reduce a lane to the CRC. */
__attribute__((target("pclmul,sse4.1"))) static inline uint32_t
crc32_reduce(__m128i d, __m128i by128)
{
    const __m128i by64 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low32 = _mm_setr_epi32(-1, 0, -1, 0);

    d = _mm_xor_si128(_mm_srli_si128(d, 8), _mm_clmulepi64_si128(d, by128, 0x10));
    d = _mm_xor_si128(_mm_srli_si128(d, 4),
                      _mm_clmulepi64_si128(_mm_and_si128(d, low32), by64, 0x00));
    __m128i t = _mm_clmulepi64_si128(_mm_and_si128(d, low32), barrett, 0x10);
    t = _mm_clmulepi64_si128(_mm_and_si128(t, low32), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(d, t), 1);
}

#if defined(CRC32_WIDE)
#define CRC32_LOAD_WIDE(p) _mm512_loadu_si512((const void *)(p))
#define CRC32_FOLD_WIDE(lanes, k, next)                                               \
    _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(lanes, k, 0x00),               \
                              _mm512_clmulepi64_epi128(lanes, k, 0x11), next, 0x96)
#define CRC32_WIDE_LEAST 256

/* Fold the whole blocks of 64 bytes into four lanes; n must be at least CRC32_WIDE_LEAST. */
__attribute__((target("avx512f,vpclmulqdq"))) static void
crc32_fold_wide(const uint8_t *p, size_t n, uint32_t crc, __m128i lanes[4])
{
    const __m512i by512 = _mm512_broadcast_i32x4(_mm_set_epi64x(CRC32_BY512));
    const __m512i by2048 =
        _mm512_broadcast_i32x4(_mm_set_epi64x(0x01322d1430, 0x011542778a));

    __m512i a = _mm512_xor_si512(CRC32_LOAD_WIDE(p),
                                 _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    __m512i b = CRC32_LOAD_WIDE(p + 64), c = CRC32_LOAD_WIDE(p + 128);
    __m512i d = CRC32_LOAD_WIDE(p + 192);
    for (p += 256, n -= 256; n >= 256; p += 256, n -= 256) {
        a = CRC32_FOLD_WIDE(a, by2048, CRC32_LOAD_WIDE(p));
        b = CRC32_FOLD_WIDE(b, by2048, CRC32_LOAD_WIDE(p + 64));
        c = CRC32_FOLD_WIDE(c, by2048, CRC32_LOAD_WIDE(p + 128));
        d = CRC32_FOLD_WIDE(d, by2048, CRC32_LOAD_WIDE(p + 192));
    }
    b = CRC32_FOLD_WIDE(a, by512, b);
    c = CRC32_FOLD_WIDE(b, by512, c);
    d = CRC32_FOLD_WIDE(c, by512, d);
    for (; n >= 64; p += 64, n -= 64)
        d = CRC32_FOLD_WIDE(d, by512, CRC32_LOAD_WIDE(p));
    _mm512_storeu_si512((void *)lanes, d);
}
#endif

/* n must be at least 16. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t
crc32_by_clmul(const uint8_t *p, size_t n, uint32_t crc)
{
    const __m128i by128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    __m128i d;

    if (n < 64) {
        d = _mm_xor_si128(CRC32_LOAD(p), _mm_cvtsi32_si128((int)crc));
        p += 16;
        n -= 16;
    } else {
        __m128i lanes[4];
#if defined(CRC32_WIDE)
        if (n >= CRC32_WIDE_LEAST && crc32_has_wide) {
            crc32_fold_wide(p, n, crc, lanes);
            p += n & ~(size_t)63;
            n &= 63;
        } else
#endif
        {
            const __m128i by512 = _mm_set_epi64x(CRC32_BY512);
            __m128i a = _mm_xor_si128(CRC32_LOAD(p), _mm_cvtsi32_si128((int)crc));
            __m128i b = CRC32_LOAD(p + 16), c = CRC32_LOAD(p + 32);
            d = CRC32_LOAD(p + 48);
            for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
                a = CRC32_FOLD(a, by512, CRC32_LOAD(p));
                b = CRC32_FOLD(b, by512, CRC32_LOAD(p + 16));
                c = CRC32_FOLD(c, by512, CRC32_LOAD(p + 32));
                d = CRC32_FOLD(d, by512, CRC32_LOAD(p + 48));
            }
            lanes[0] = a, lanes[1] = b, lanes[2] = c, lanes[3] = d;
        }
        d = CRC32_FOLD(lanes[0], by128, lanes[1]);
        d = CRC32_FOLD(d, by128, lanes[2]);
        d = CRC32_FOLD(d, by128, lanes[3]);
    }
    for (; n >= 16; p += 16, n -= 16)
        d = CRC32_FOLD(d, by128, CRC32_LOAD(p));
    if (n)
        d = crc32_fold_rest(d, p, n, by128);
    return crc32_reduce(d, by128);
}
#endif

static inline uint32_t crc32_of(const uint8_t *p, size_t n)
{
    uint32_t crc = 0xFFFFFFFFu;
#if defined(__x86_64__)
    if (n >= 16 && crc32_has_clmul)
        return ~crc32_by_clmul(p, n, crc);
#endif
    return ~crc32_by_table(p, n, crc);
}

#endif
