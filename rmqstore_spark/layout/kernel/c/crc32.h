/* CRC-32 (zlib's polynomial) of one span: by carry-less multiplication if the processor supports
 * it, else eight bytes at a time from tables.
 *
 * The multiplication folds four 16-byte lanes at once, then reduces them by Barrett's method. The
 * constants are powers of x modulo the polynomial, bit-reflected.
 */
#ifndef RMQSTORE_CRC32_H
#define RMQSTORE_CRC32_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t crc32_table[8][256];
static int crc32_has_clmul;

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

/* n must be at least 64; the remaining bytes (under 16) go through the tables. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t
crc32_by_clmul(const uint8_t *p, size_t n, uint32_t crc)
{
    const __m128i by512 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
    const __m128i by128 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
    const __m128i by64 = _mm_set_epi64x(0, 0x0163cd6124);
    const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
    const __m128i low32 = _mm_setr_epi32(-1, 0, -1, 0);

    __m128i a = _mm_xor_si128(CRC32_LOAD(p), _mm_cvtsi32_si128((int)crc));
    __m128i b = CRC32_LOAD(p + 16), c = CRC32_LOAD(p + 32), d = CRC32_LOAD(p + 48);
    for (p += 64, n -= 64; n >= 64; p += 64, n -= 64) {
        a = CRC32_FOLD(a, by512, CRC32_LOAD(p));
        b = CRC32_FOLD(b, by512, CRC32_LOAD(p + 16));
        c = CRC32_FOLD(c, by512, CRC32_LOAD(p + 32));
        d = CRC32_FOLD(d, by512, CRC32_LOAD(p + 48));
    }
    b = CRC32_FOLD(a, by128, b);
    c = CRC32_FOLD(b, by128, c);
    d = CRC32_FOLD(c, by128, d);
    for (; n >= 16; p += 16, n -= 16)
        d = CRC32_FOLD(d, by128, CRC32_LOAD(p));

    d = _mm_xor_si128(_mm_srli_si128(d, 8), _mm_clmulepi64_si128(d, by128, 0x10));
    d = _mm_xor_si128(_mm_srli_si128(d, 4),
                      _mm_clmulepi64_si128(_mm_and_si128(d, low32), by64, 0x00));
    __m128i t = _mm_clmulepi64_si128(_mm_and_si128(d, low32), barrett, 0x10);
    t = _mm_clmulepi64_si128(_mm_and_si128(t, low32), barrett, 0x00);
    crc = (uint32_t)_mm_extract_epi32(_mm_xor_si128(d, t), 1);
    return crc32_by_table(p, n, crc);
}
#endif

static inline uint32_t crc32_of(const uint8_t *p, size_t n)
{
    uint32_t crc = 0xFFFFFFFFu;
#if defined(__x86_64__)
    if (n >= 64 && crc32_has_clmul)
        return ~crc32_by_clmul(p, n, crc);
#endif
    return ~crc32_by_table(p, n, crc);
}

#endif
